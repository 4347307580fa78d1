//! Messages that confirm an address: what a person types and does on the pages that send them and
//! wait for them.

use maud::{Markup, html};

use super::parameters::Parameters;
use crate::{
    api::{
        auth::{
            claim::auth_failed,
            validation::{request_for_page, show_token, validated},
        },
        server::Server,
    },
    http::{ApiError, Cx},
};
use logcabin_base::clock::random_token;
use logcabin_decide::threepid::Validated;
use logcabin_record::{
    address,
    threepid::{Medium, Purpose},
};

/// A message that was sent.
pub(super) struct Sent {
    medium: Medium,
    sid: String,
    secret: String,
}

impl Sent {
    /// Sends a message to an address as a person types it.
    pub(super) async fn to(
        typed: &str,
        purpose: Purpose,
        cx: &Cx<Server, ()>,
    ) -> Result<Self, ApiError> {
        let typed = typed.trim();
        let threepid = if typed.starts_with('+') {
            address::parse("msisdn", typed)?
        } else {
            address::email(typed)?
        };
        let (medium, secret) = (threepid.medium, random_token());
        let sid = request_for_page(cx, purpose, threepid, &secret).await?;
        Ok(Self { medium, sid, secret })
    }

    /// The one that a form is about.
    pub(super) fn of(fields: &Parameters) -> Self {
        let is_phone = fields.text("medium") == "msisdn";
        Self {
            medium: if is_phone { Medium::Msisdn } else { Medium::Email },
            sid: fields.text("sid").to_owned(),
            secret: fields.text("client_secret").to_owned(),
        }
    }

    /// Whether it has a code that must be entered, and no link.
    pub(super) fn has_code(&self) -> bool {
        self.medium == Medium::Msisdn
    }

    /// The fields of a form about it.
    pub(super) fn fields(&self) -> Markup {
        html! {
            input type="hidden" name="medium" value=(self.medium.as_str());
            input type="hidden" name="sid" value=(self.sid);
            input type="hidden" name="client_secret" value=(self.secret);
            @if self.has_code() {
                label for="code" { "Code" }
                input type="text" id="code" name="code" required inputmode="numeric"
                    autocomplete="one-time-code" autofocus aria-describedby="wrong";
            }
        }
    }

    /// The proof that somebody has it, with the code of the form if it has one.
    pub(super) async fn proof(
        &self,
        purpose: Purpose,
        cx: &Cx<Server, ()>,
        fields: &Parameters,
    ) -> Result<Validated, ApiError> {
        if let Some(code) = fields.get("code") {
            // The look below says whether it was correct.
            show_token(cx, &self.sid, &self.secret, code).await?;
        }
        validated(&cx.app.engine, purpose, &self.sid, &self.secret).ok_or_else(auth_failed)
    }
}
