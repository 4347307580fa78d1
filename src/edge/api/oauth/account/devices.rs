//! Where a user is signed in: devices, other services, and browsers.

use maud::{Markup, html};
use ruma::{DeviceId, OwnedDeviceId};

use super::{Action, Done, Visit};
use crate::{
    api::oauth::{page_parts, parameters::Parameters},
    http::ApiError,
};
use logcabin_decide::{
    account::{DeviceSet, RemoveDevices, RenameDevice},
    oauth::{EndGrants, SignOut},
};
use logcabin_ops::history::moment::Time;
use logcabin_record::command::{GrantEnd, TokenHash};
use logcabin_service::accounts::names::short_name;
use logcabin_state::{Device, oauth::Grant};

impl Visit<'_> {
    fn device_of(&self, device_id: &DeviceId) -> Option<Device> {
        let account = self.app.engine.state().accounts.get(&self.signed_in.user_id)?;
        let account = account.read();
        let device = account.device(device_id).cloned();
        device.filter(|device| device.tokens.is_some())
    }

    /// The name of the client with this id.
    fn client_name(&self, client_id: &str) -> String {
        match self.app.oauth.clients.get(&self.app.engine, client_id) {
            Some(client) => {
                page_parts::name(&client, &page_parts::languages(self.headers)).to_owned()
            }
            None => "an app that is not known any more".to_owned(),
        }
    }

    pub(super) fn devices(&self) -> Markup {
        let state = self.app.engine.state();
        let user_id = &self.signed_in.user_id;
        let devices: Vec<(OwnedDeviceId, Device)> = match state.accounts.get(user_id) {
            Some(account) => {
                let account = account.read();
                let own = account.active_devices();
                own.map(|(id, device)| (id.clone(), device.clone())).collect()
            }
            None => Vec::new(),
        };
        let elsewhere = state.oauth.grants_of(user_id).into_iter();
        let elsewhere: Vec<Grant> = elsewhere.filter(|grant| grant.device_id.is_none()).collect();
        let now_ms = self.app.engine.clock().now_ms();
        let browsers = state.oauth.browsers_of(user_id).into_iter();
        let browsers: Vec<_> =
            browsers.filter(|(_, browser)| browser.expires_ms > now_ms).collect();
        html! {
            @if devices.is_empty() { p { "No device is signed in." } }
            @else {
                ul.rows {
                    @for (device_id, device) in &devices {
                        li {
                            a href=(self.href(&Action::Device(device_id.clone()))) {
                                (name_of(device_id, device))
                            }
                            br;
                            span.note { (self.seen(device_id, device)) }
                        }
                    }
                }
            }
            @if !elsewhere.is_empty() {
                h2 { "Other services" }
                @for grant in &elsewhere {
                    p {
                        strong { (self.client_name(&grant.client_id)) } br;
                        span.note { "Allowed on " (Time(grant.granted_ms).date()) }
                    }
                    (self.form("grant_end", &grant.grant_id, html! {
                        button.second type="submit" {
                            "Sign out of " (self.client_name(&grant.client_id))
                        }
                    }))
                }
            }
            h2 { "These pages" }
            @for (hash, browser) in &browsers {
                p {
                    @if *hash == self.visitor.hash { strong { "This browser" } }
                    @else { (browser.agent.as_deref().unwrap_or("A browser")) }
                    br;
                    span.note {
                        "Signed in on " (Time(browser.auth_ms).date())
                        @if let Some(address) = browser.address { " from " (address) }
                    }
                }
                @if *hash != self.visitor.hash {
                    (self.form("browser_remove", &hex(hash), html! {
                        button.second type="submit" { "Sign out of that browser" }
                    }))
                }
            }
        }
    }

    fn seen(&self, device_id: &DeviceId, device: &Device) -> String {
        let state = self.app.engine.state();
        match self.app.last_seen.of(&state, &self.signed_in.user_id, device_id, device) {
            Some(seen) => {
                format!("Last used on {} from {}", Time(seen.seen_ms).date(), seen.address)
            }
            None => format!("Signed in on {}", Time(device.login_ms).date()),
        }
    }

    pub(super) fn device(&self, device_id: &DeviceId) -> Markup {
        let Some(device) = self.device_of(device_id) else { return self.no_device() };
        let grant = self.app.engine.state().oauth.grant_of_session(device.session);
        html! {
            (self.described(device_id, &device, grant.as_ref()))
            (self.form("device_name", device_id.as_str(), html! {
                label for="name" { "Name" }
                input type="text" id="name" name="name" maxlength="255"
                    value=(device.display_name.as_deref().unwrap_or_default())
                    autocomplete="off" aria-describedby="wrong name-note";
                p.note id="name-note" { "People whom you write to can see it." }
                button type="submit" { "Save the name" }
            }))
            a.button.second href=(self.href(&Action::RemoveDevice(device_id.to_owned()))) {
                "Sign this device out"
            }
            p { a href=(self.href(&Action::Devices)) { "All devices" } }
        }
    }

    fn described(&self, device_id: &DeviceId, device: &Device, grant: Option<&Grant>) -> Markup {
        html! {
            p {
                strong { (name_of(device_id, device)) } br;
                "Device " code { (device_id) } br;
                "Signed in on " (Time(device.login_ms).date())
                @if let Some(grant) = grant { " with " (self.client_name(&grant.client_id)) }
                br;
                (self.seen(device_id, device))
            }
        }
    }

    fn no_device(&self) -> Markup {
        html! {
            p { "This device is not signed in." }
            p { a href=(self.href(&Action::Devices)) { "All devices" } }
        }
    }

    pub(super) fn remove_device(&self, device_id: &DeviceId) -> Markup {
        let Some(device) = self.device_of(device_id) else { return self.no_device() };
        let grant = self.app.engine.state().oauth.grant_of_session(device.session);
        html! {
            (self.described(device_id, &device, grant.as_ref()))
            p.note {
                "Keys of encrypted messages that only this device has are lost with it, unless there \
                 is a backup of them."
            }
            (self.form("device_remove", device_id.as_str(), html! {
                button type="submit" { "Sign it out" }
            }))
            p { a href=(self.href(&Action::Devices)) { "All devices" } }
        }
    }

    pub(super) async fn rename_device(
        &self,
        target: &str,
        fields: &Parameters,
    ) -> Result<Done, ApiError> {
        let name = fields.text("name").trim();
        let display_name = short_name((!name.is_empty()).then(|| name.to_owned()))?;
        let device_id = OwnedDeviceId::from(target);
        let user_id = self.signed_in.user_id.clone();
        let proposal = RenameDevice { user_id, device_id: device_id.clone(), display_name };
        self.app.engine.propose(self.origin(), proposal).await?.into_inner();
        Ok(Done::Page(Action::Device(device_id), "The name is saved."))
    }

    pub(super) async fn sign_device_out(&self, target: &str) -> Result<Done, ApiError> {
        let device_id = OwnedDeviceId::from(target);
        let device = self.device_of(&device_id);
        let device = device.ok_or_else(|| ApiError::not_found("There is no such device."))?;
        let user_id = self.signed_in.user_id.clone();
        match self.app.engine.state().oauth.grant_of_session(device.session) {
            Some(grant) => self.end(grant.grant_id).await?,
            None => {
                let proposal = RemoveDevices { user_id, which: DeviceSet::These(vec![device_id]) };
                self.app.engine.propose(self.origin(), proposal).await?.into_inner();
            }
        }
        Ok(Done::Page(Action::Devices, "The device is signed out."))
    }

    async fn end(&self, grant_id: String) -> Result<(), ApiError> {
        let user_id = self.signed_in.user_id.clone();
        let proposal = EndGrants { user_id, grants: vec![grant_id], because: GrantEnd::ByUser };
        self.app.engine.propose(self.origin(), proposal).await?.into_inner();
        Ok(())
    }

    pub(super) async fn end_grant(&self, target: &str) -> Result<Done, ApiError> {
        self.end(target.to_owned()).await?;
        Ok(Done::Page(Action::Devices, "You are signed out there."))
    }

    pub(super) async fn sign_browser_out(&self, target: &str) -> Result<Done, ApiError> {
        let user_id = self.signed_in.user_id.clone();
        let own = self.app.engine.state().oauth.browsers_of(&user_id).into_iter();
        let browsers = own.map(|(hash, _)| hash).filter(|hash| hex(hash) == target).collect();
        let proposal = SignOut { user_id, browsers };
        self.app.engine.propose(self.origin(), proposal).await?.into_inner();
        Ok(Done::Page(Action::Devices, "That browser is signed out."))
    }
}

fn name_of(device_id: &DeviceId, device: &Device) -> String {
    let name = device.display_name.as_deref().filter(|name| !name.trim().is_empty());
    name.unwrap_or(device_id.as_str()).to_owned()
}

/// How a form names a browser.
fn hex(hash: &TokenHash) -> String {
    hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
}
