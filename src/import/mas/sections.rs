//! The tables of each section.

mod account;
mod oauth;

use super::Context;
use crate::{
    facts::Section,
    sql::{
        database::{Fault, Row},
        plan::Plan,
    },
};

/// The tables of a section, one after the other; none of those that Synapse has.
pub(super) const fn plans(section: Section) -> &'static [Plan<Context>] {
    match section {
        Section::RegistrationTokens => account::REGISTRATION_TOKENS,
        Section::Accounts => account::ACCOUNTS,
        Section::Threepids => account::THREEPIDS,
        Section::ExternalIds => account::EXTERNAL_IDS,
        Section::OauthClients => oauth::CLIENTS,
        Section::OauthGrants => oauth::GRANTS,
        Section::Devices => oauth::DEVICES,
        Section::AccessTokens => oauth::ACCESS_TOKENS,
        Section::RefreshTokens => oauth::REFRESH_TOKENS,
        _ => &[],
    }
}

/// The id of the user whose name was joined to a row.
fn user_id(row: &mut Row, context: &Context) -> Result<String, Fault> {
    let name = row.text_or_none("username")?;
    name.map(|name| context.user_id(&name)).ok_or_else(|| "its user is not there".to_owned())
}

#[cfg(test)]
mod tests {
    use super::plans;
    use crate::facts::Section;

    #[test]
    fn every_plan_has_a_key() {
        for section in Section::ALL {
            for plan in plans(section) {
                assert!(plan.keys > 0 && plan.keys <= plan.columns.len(), "{section:?}");
                assert!(plan.shown <= plan.keys, "{section:?}");
            }
        }
    }
}
