//! Pictures on pages: thumbnails that this server made of files that are here. Those that may be
//! bad to look at are blurred until somebody asks for them.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS},
};
use maud::{Markup, html};
use ruma::{MxcUri, ServerName};

use super::{
    frame::HOME,
    parts::{encoded, short},
    visitor::{ConsoleStream, Visitor},
};
use crate::{
    api::{browser::is_from_elsewhere, media::serving::Serving, server::Server},
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_media::picture::{Method, ThumbnailSpec};
use logcabin_state::media::Item;

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The types of files that may have a thumbnail, as their uploaders name them.
const DRAWN: [&str; 6] =
    ["image/apng", "image/gif", "image/jpeg", "image/jpg", "image/png", "image/webp"];

/// How large a picture is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Small,
    Medium,
    Large,
}

impl Size {
    const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// The width in pixels, by which it is asked for.
    const fn width(self) -> u32 {
        match self {
            Self::Small => 96,
            Self::Medium => 320,
            Self::Large => 800,
        }
    }

    /// One of those that are made anyway.
    const fn spec(self) -> ThumbnailSpec {
        let (height, method) = match self {
            Self::Small => (96, Method::Crop),
            Self::Medium => (240, Method::Scale),
            Self::Large => (600, Method::Scale),
        };
        ThumbnailSpec { width: self.width(), height, method, animated: false }
    }
}

endpoint! {
    /// A thumbnail, in one of the sizes that pages have.
    pub(super) struct Thumbnail = GET "/_logcabin/console/thumbnail/{server}/{media_id}";
    for ConsoleStream;
    {
        server: String = path,
        media_id: String = path,
        width: Option<String> = parameter,
        headers: HeaderMap = headers,
    }
}

pub(super) async fn thumbnail(
    cx: Cx<Server, Visitor>,
    request: Thumbnail,
) -> Result<Reply, ApiError> {
    if is_from_elsewhere(&request.headers) == Some(true) {
        return Err(ApiError::forbidden("This picture is for pages of the console."));
    }
    let width = request.width.as_deref().and_then(|width| width.parse().ok());
    let size = Size::ALL.into_iter().find(|size| Some(size.width()) == width);
    let size = size.ok_or_else(|| ApiError::invalid_param("`width` is 96, 320 or 800."))?;
    let server = <&ServerName>::try_from(request.server.as_str());
    let server = server.map_err(|_| ApiError::not_found("There is no such file."))?;
    let found = cx.app.media.at_hand(server, &request.media_id).await?;
    let whose = cx.caller.requester();
    let (bytes, format) = Serving::of(&cx.app).draw(&found, size.spec(), &whose).await?;
    let value = HeaderValue::from_static;
    Ok(Reply::bytes(format.content_type(), bytes)
        .with_header(X_CONTENT_TYPE_OPTIONS, value("nosniff"))
        .with_header(CONTENT_SECURITY_POLICY, value("sandbox; default-src 'none'"))
        .with_header(RESOURCE_POLICY, value("same-origin"))
        // It may be what nobody should have on their disk.
        .with_header(CACHE_CONTROL, value("no-store")))
}

/// Whether a file may have a thumbnail, by the type that its uploader named.
pub(super) fn is_drawn(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|of| DRAWN.contains(&&*essence(of)))
}

/// A type without its parameters.
fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// What kind of file it is, in a word.
pub(super) fn kind(content_type: Option<&str>) -> &'static str {
    let of = essence(content_type.unwrap_or_default());
    match of.split('/').next().unwrap_or_default() {
        "image" => "Picture",
        "video" => "Video",
        "audio" => "Sound",
        "text" => "Text",
        _ if of == "application/pdf" => "Document",
        _ => "File",
    }
}

/// Whether this server has the file, so that a page can show it. May look at the disk.
pub(super) fn is_here(app: &Server, address: &MxcUri) -> bool {
    let Ok((server, media_id)) = address.parts() else { return false };
    match app.media.is_own(server) {
        true => matches!(app.engine.state().media.get(media_id), Some(Item::Stored(_))),
        false => app.media.remote_files().look(address).is_some(),
    }
}

fn path(address: &MxcUri, size: Size) -> Option<String> {
    let (server, media_id) = address.parts().ok().filter(|(_, media_id)| !media_id.is_empty())?;
    let (server, media_id) = (encoded(server.as_str()), encoded(media_id));
    Some(format!("{HOME}/thumbnail/{server}/{media_id}?width={}", size.width()))
}

/// A picture that is blurred until it is opened, with the mouse or the keyboard. Open, it leads to
/// a larger one.
pub(super) fn picture(address: &MxcUri, name: &str) -> Markup {
    html! {
        @if let (Some(shown), Some(larger)) =
            (path(address, Size::Medium), path(address, Size::Large))
        {
            details.picture {
                summary {
                    img.shown src=(shown) alt=(short(name)) loading="lazy";
                    span.veil { "Show" }
                }
                a href=(larger) { "Larger" }
            }
        }
    }
}

/// The avatar of a user or a room, or the first letter of the name.
pub(super) fn avatar(app: &Server, address: Option<&str>, name: &str, is_blurred: bool) -> Markup {
    let address = address.map(<&MxcUri>::from).filter(|address| is_here(app, address));
    let shown = address.and_then(|address| path(address, Size::Small));
    let first = name.chars().find(|letter| letter.is_alphanumeric());
    let first = first.map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    html! {
        @match shown {
            Some(shown) if is_blurred => {
                details.picture.avatar {
                    summary {
                        img.shown src=(shown) alt="Avatar" width="96" height="96";
                        span.veil { "Show" }
                    }
                }
            }
            Some(shown) => {
                span.avatar { img.shown src=(shown) alt="Avatar" width="96" height="96"; }
            }
            None => span.avatar aria-hidden="true" { (first) },
        }
    }
}

/// What a page of a user or a room has in the place of its title.
pub(super) fn heading(avatar: &Markup, name: &str, below: &Markup) -> Markup {
    html! {
        div.titled {
            (avatar)
            div {
                h1 { bdi { (short(name)) } }
                (below)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_pages_are_those_that_are_made_anyway() {
        for size in Size::ALL {
            assert_eq!(size.spec().rounded(), size.spec(), "{size:?}");
        }
    }

    #[test]
    fn only_types_of_pictures_that_are_decoded_are_drawn() {
        assert!(is_drawn(Some("image/PNG; charset=x")) && is_drawn(Some("image/jpeg")));
        for other in [None, Some(""), Some("image/svg+xml"), Some("text/html"), Some("video/mp4")] {
            assert!(!is_drawn(other), "{other:?}");
        }
        assert_eq!(kind(Some("image/svg+xml")), "Picture");
        assert_eq!(kind(Some("application/pdf")), "Document");
        assert_eq!(kind(None), "File");
    }

    #[test]
    fn an_address_cannot_lead_elsewhere() {
        for hostile in ["mxc://a/../../log", "mxc://a/b\"onload", "https://a/b", "mxc://a/"] {
            assert_eq!(path(hostile.into(), Size::Small), None, "{hostile}");
        }
        let path = path("mxc://a.example:8448/abc".into(), Size::Large);
        let expected = "/_logcabin/console/thumbnail/a%2Eexample%3A8448/abc?width=800";
        assert_eq!(path.as_deref(), Some(expected));
    }
}
