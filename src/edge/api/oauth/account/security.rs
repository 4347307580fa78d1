//! What an account is held by: its password and its cross-signing keys; and its end.

use http::header::SET_COOKIE;
use maud::{Markup, html};

use super::{Action, Done, Visit};
use crate::{
    api::{
        account::deactivate,
        auth::credentials::check_password,
        browser::page::Page,
        oauth::{
            browser::{NewSignIn, forgotten, sign_in},
            page_parts,
            parameters::Parameters,
        },
    },
    http::ApiError,
};
use logcabin_base::{clock::millis, limits};
use logcabin_decide::{
    account::{DeviceSet, SetPassword},
    oauth::PermitReset,
};
use logcabin_record::command::SignedInBy;

impl Visit<'_> {
    fn has_password(&self) -> bool {
        let config = &self.app.config;
        config.accounts.change_password && config.login.password
    }

    pub(super) fn password(&self) -> Markup {
        if !self.has_password() {
            return html! { p { "Passwords cannot be changed here." } };
        }
        html! {
            (self.form("password", "", html! {
                input type="hidden" name="username" autocomplete="username"
                    value=(self.signed_in.user_id);
                (page_parts::new_password(&self.app.config.passwords, "New password"))
                label.check {
                    input type="checkbox" name="everywhere" value="yes";
                    " Sign out all devices and browsers. Do this if somebody else may know the old \
                     password."
                }
                button type="submit" { "Set the password" }
            }))
        }
    }

    pub(super) async fn set_password(&self, fields: &Parameters) -> Result<Done, ApiError> {
        if !self.has_password() {
            return Err(ApiError::forbidden("Passwords cannot be changed here."));
        }
        let (app, user_id) = (self.app, self.signed_in.user_id.clone());
        let password = fields.new_password()?.to_owned();
        check_password(&app.config.passwords, user_id.localpart(), &password)?;
        let password = app.auth.passwords.hash(password).await?;
        let log_out = fields.get("everywhere").map(|_| DeviceSet::All);
        let set = SetPassword { user_id: user_id.clone(), password, log_out };
        app.engine.propose(self.origin(), set).await?.into_inner();
        let arrival = NewSignIn::of(self.cx, self.headers, user_id, SignedInBy::Password);
        let cookie = sign_in(app, arrival).await?;
        let body = html! {
            p.good role="status" { "Your password is set." }
            p { a href=(self.href(&Action::Overview)) { "Your account" } }
        };
        let page = Page::new("Your new password", body).reply();
        Ok(Done::Reply(page.with_header(SET_COOKIE, cookie)))
    }

    pub(super) fn reset(&self) -> Markup {
        html! {
            p {
                "Your digital identity shows others that your devices are yours. A new one is for \
                 those who have lost all their devices and their recovery key."
            }
            ul {
                li { "People who verified you have to do so again." }
                li { "Without another device or a recovery key, earlier encrypted messages are lost." }
            }
            p.bad { "Allow this only if you started it yourself, in one of your apps." }
            (self.form("reset", "", html! {
                button type="submit" { "Allow a new identity" }
            }))
        }
    }

    pub(super) async fn permit_reset(&self) -> Result<Done, ApiError> {
        let now_ms = self.app.engine.clock().now_ms();
        let until_ms = now_ms.saturating_add(millis(limits::OAUTH_RESET));
        let user_id = self.signed_in.user_id.clone();
        let proposal = PermitReset { user_id, until_ms };
        self.app.engine.propose(self.origin(), proposal).await?.into_inner();
        let body = html! {
            p.good role="status" {
                "Your app can make the new identity within "
                (limits::OAUTH_RESET.as_secs() / 60) " minutes."
            }
            p { "Go back to it." }
        };
        Ok(Done::Reply(Page::new("Allowed", body).reply()))
    }

    pub(super) fn deactivate(&self) -> Markup {
        let user_id = &self.signed_in.user_id;
        html! {
            p { "This cannot be undone:" }
            ul {
                li { "All your devices are signed out, and nobody can sign in any more." }
                li { "You leave all rooms." }
                li { "The name " (user_id) " is not given to anybody again." }
            }
            (self.form("deactivate", "", html! {
                label.check {
                    input type="checkbox" name="erase" value="yes";
                    " Hide my messages from people who join later, and delete my data"
                }
                label for="confirm" { "To confirm, write your Matrix id" }
                input type="text" id="confirm" name="confirm" required maxlength="255"
                    autocomplete="off" autocapitalize="none" spellcheck="false"
                    placeholder=(user_id) aria-describedby="wrong";
                button type="submit" { "Deactivate the account forever" }
            }))
        }
    }

    pub(super) async fn close(&self, fields: &Parameters) -> Result<Done, ApiError> {
        let user_id = self.signed_in.user_id.clone();
        if fields.text("confirm").trim() != user_id.as_str() {
            return Err(ApiError::bad_request(format!("This is not {user_id}.")));
        }
        let erase = fields.get("erase").is_some();
        deactivate::close(&self.cx.app, self.origin(), user_id, erase, None).await?;
        let body = html! { p role="status" { "Your account is deactivated. Farewell." } };
        let page = Page::new("Deactivated", body).reply();
        Ok(Done::Reply(page.with_header(SET_COOKIE, forgotten(&self.app.config.server)?)))
    }
}
