//! The display name, and the addresses of an account.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Action, Done, Visit};
use crate::{
    api::{
        account::{profile, threepid as addresses},
        browser::page::Page,
        oauth::{message::Sent, page_parts, parameters::Parameters},
    },
    http::ApiError,
};
use logcabin_base::limits;
use logcabin_decide::threepid::AddThreepid;
use logcabin_record::threepid::{Medium, Purpose, Threepid};

impl Visit<'_> {
    /// The media of addresses that can be added.
    fn media(&self) -> Vec<Medium> {
        let reached = |medium: &Medium| self.app.outside.messages.reach(*medium);
        let media = [Medium::Email, Medium::Msisdn].into_iter();
        if self.app.config.accounts.third_party_ids {
            media.filter(reached).collect()
        } else {
            Vec::new()
        }
    }

    fn addresses(&self) -> Vec<Threepid> {
        let own = self.app.engine.state().threepids.of_user(&self.signed_in.user_id);
        own.into_iter().map(|(threepid, _)| threepid).collect()
    }

    pub(super) fn profile(&self) -> Markup {
        let user_id = &self.signed_in.user_id;
        let account = self.app.engine.state().accounts.get(user_id);
        let name = account.and_then(|account| {
            account.read().profile_field("displayname").and_then(Value::as_str).map(str::to_owned)
        });
        let (media, addresses) = (self.media(), self.addresses());
        let may_remove = self.app.config.accounts.third_party_ids;
        html! {
            p { "Your Matrix id is " strong { (user_id) } "." }
            @if self.app.config.accounts.set_displayname {
                (self.form("name", "", html! {
                    label for="name" { "Display name" }
                    input type="text" id="name" name="name" value=(name.unwrap_or_default())
                        maxlength=(limits::DISPLAY_NAME_BYTES) autocomplete="nickname"
                        aria-describedby="wrong";
                    button type="submit" { "Save the name" }
                }))
            }
            @if !addresses.is_empty() || !media.is_empty() {
                h2 { "Addresses" }
                p.note { "They are for a forgotten password. Nobody sees them in rooms." }
            }
            @for threepid in &addresses {
                p { (shown(threepid)) }
                @if may_remove {
                    (self.form("address_remove", &target(threepid), html! {
                        button.second type="submit" { "Remove " (shown(threepid)) }
                    }))
                }
            }
            @if !media.is_empty() {
                (self.form("address", "", html! {
                    label for="address" {
                        @if media.contains(&Medium::Msisdn) {
                            "Another e-mail address, or phone number beginning with +"
                        } @else {
                            "Another e-mail address"
                        }
                    }
                    input type="text" id="address" name="address" required maxlength="254"
                        autocomplete="email" autocapitalize="none" spellcheck="false"
                        aria-describedby="wrong";
                    button.second type="submit" { "Send a message to confirm it" }
                }))
            }
        }
    }

    pub(super) async fn set_name(&self, fields: &Parameters) -> Result<Done, ApiError> {
        if !self.app.config.accounts.set_displayname {
            return Err(ApiError::forbidden("You cannot change your display name here."));
        }
        let user_id = &self.signed_in.user_id;
        let standing = self.app.engine.state().accounts.standing(user_id).unwrap_or_default();
        if standing.suspended {
            return Err(ApiError::forbidden("Your account is suspended."));
        }
        // As by the API.
        if standing.shadow_banned {
            return Ok(Done::Page(Action::Profile, "Your name is saved."));
        }
        let name = fields.text("name").trim();
        let value = (!name.is_empty()).then(|| json!(name));
        let (field, origin) = ("displayname".to_owned(), self.origin());
        profile::change(&self.cx.app.engine, origin, user_id, field, value).await?;
        Ok(Done::Page(Action::Profile, "Your name is saved."))
    }

    /// Sends a message to an address that the user wants to add.
    pub(super) async fn ask_address(&self, fields: &Parameters) -> Result<Done, ApiError> {
        let sent = Sent::to(fields.text("address"), Purpose::Add, self.cx).await?;
        Ok(Done::Reply(self.confirm(&sent, None).reply()))
    }

    /// The page that waits until an address is confirmed.
    fn confirm(&self, sent: &Sent, wrong: Option<&str>) -> Page {
        let body = html! {
            p {
                @if sent.has_code() { "Enter the code from the message that was sent there." }
                @else { "Open the link in the message that was sent there, then continue here." }
            }
            (page_parts::alert(wrong))
            (self.form("address_add", "", html! {
                (sent.fields())
                button type="submit" { "Add the address" }
            }))
            p { a href=(self.href(&Action::Profile)) { "Do not add it" } }
        };
        Page::new("A message is on its way", body)
    }

    pub(super) async fn add_address(&self, fields: &Parameters) -> Result<Done, ApiError> {
        if !self.app.config.accounts.third_party_ids {
            return Err(ApiError::forbidden("You cannot change your addresses here."));
        }
        let sent = Sent::of(fields);
        let added = async {
            let validated = sent.proof(Purpose::Add, self.cx, fields).await?;
            let proposal = AddThreepid { user_id: self.signed_in.user_id.clone(), validated };
            self.app.engine.propose(self.origin(), proposal).await?.into_inner();
            Ok::<_, ApiError>(())
        };
        match added.await {
            Ok(()) => Ok(Done::Page(Action::Profile, "The address is added.")),
            Err(error) if error.status().is_client_error() => {
                let page = self.confirm(&sent, Some(error.message()));
                Ok(Done::Reply(page.status(error.status()).reply()))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn remove_address(&self, target: &str) -> Result<Done, ApiError> {
        if !self.app.config.accounts.third_party_ids {
            return Err(ApiError::forbidden("You cannot change your addresses here."));
        }
        let own = self.addresses().into_iter().find(|own| self::target(own) == target);
        let own = own.ok_or_else(|| ApiError::not_found("You have no such address."))?;
        let user_id = &self.signed_in.user_id;
        addresses::remove(self.app, &self.origin(), user_id, &own, None).await?;
        Ok(Done::Page(Action::Profile, "The address is removed."))
    }
}

/// How a form names an address.
fn target(threepid: &Threepid) -> String {
    format!("{} {}", threepid.medium.as_str(), threepid.address)
}

/// How people read it.
fn shown(threepid: &Threepid) -> String {
    match threepid.medium {
        Medium::Email => threepid.address.clone(),
        Medium::Msisdn => format!("+{}", threepid.address),
    }
}
