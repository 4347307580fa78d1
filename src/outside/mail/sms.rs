//! Text messages, through an HTTP gateway.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;
use url::Url;

use super::{SendError, SetupError};
use crate::outbound::{Outbound, OutboundRequest};
use logcabin_config::Sms;

/// A gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    outbound: Outbound,
    url: Url,
    headers: HeaderMap,
    template: Value,
    timeout: Duration,
}

impl Gateway {
    /// The configured gateway, if there is one.
    pub(super) fn new(config: &Sms, outbound: &Outbound) -> Result<Option<Self>, SetupError> {
        let Some(url) = &config.url else { return Ok(None) };
        let mut headers = HeaderMap::new();
        for header in config.headers.iter() {
            let parsed = header.expose().split_once(':').and_then(|(name, value)| {
                let name: HeaderName = name.trim().parse().ok()?;
                let mut value: HeaderValue = value.trim().parse().ok()?;
                value.set_sensitive(true);
                Some((name, value))
            });
            let (name, value) = parsed.ok_or_else(|| SetupError::Setting {
                setting: "sms.headers",
                // Without the header, which may contain a secret.
                reason: "a header is written as `Name: value`".to_owned(),
            })?;
            headers.insert(name, value);
        }
        Ok(Some(Self {
            outbound: outbound.clone(),
            url: url.url().clone(),
            headers,
            template: config.template.0.clone(),
            timeout: Duration::from_secs(config.timeout_seconds),
        }))
    }

    /// Hands a text over to the gateway.
    pub(super) async fn send(
        &self,
        number: &str,
        text: &str,
        server: &str,
    ) -> Result<(), SendError> {
        let values = [("{number}", number), ("{text}", text), ("{server}", server)];
        let mut ask = OutboundRequest::new(Method::POST, self.url.clone())
            .json(&filled(&self.template, &values));
        ask.headers.extend(self.headers.clone());
        ask.timeout = self.timeout;
        let answer = self.outbound.send(ask).await?;
        if answer.status.is_success() { Ok(()) } else { Err(SendError::Refused(answer.status)) }
    }
}

/// `template` with the placeholders in its strings replaced: inside the JSON, so that no value can
/// end its string. Placeholders in values are not replaced.
fn filled(template: &Value, values: &[(&str, &str)]) -> Value {
    match template {
        Value::String(text) => Value::String(fill(text, values)),
        Value::Array(items) => items.iter().map(|item| filled(item, values)).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), filled(value, values))).collect()
        }
        other => other.clone(),
    }
}

fn fill(text: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match values.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => {
                out.push_str(value);
                rest = &rest[name.len()..];
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_stay_within_their_text() {
        let template =
            json!({ "to": ["+{number}"], "body": { "text": "{text} {other} {", "n": 1 } });
        let values = [("{number}", "4912"), ("{text}", "\", \"to\": \"{number}")];
        assert_eq!(
            filled(&template, &values),
            json!({ "to": ["+4912"], "body": { "text": "\", \"to\": \"{number} {other} {", "n": 1 } })
        );
    }
}
