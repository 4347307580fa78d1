//! Previews of pages (client-server API, "Content repository", `preview_url`).

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use image::{DynamicImage, ImageFormat};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{Answer, TestServer, User, encode};

/// The head of an answer, from its status on, and the body.
type Page = (String, Vec<u8>);

/// A site on this machine, with its pages by their paths.
struct Site {
    base: String,
    pages: Arc<Mutex<HashMap<String, Page>>>,
    /// The requests that came.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Site {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().expect("a free port"));
        let site = Self { base, pages: Arc::default(), asked: Arc::default() };
        let (pages, asked) = (Arc::clone(&site.pages), Arc::clone(&site.asked));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a free port");
                let (pages, asked) = (Arc::clone(&pages), Arc::clone(&asked));
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).expect("a well-formed request");
                    let path = head.split(' ').nth(1).expect("a well-formed request").to_owned();
                    asked.lock().expect("no test thread panicked").push(head);
                    let page = pages.lock().expect("no test thread panicked").get(&path).cloned();
                    let (said, body) = page.unwrap_or_else(|| ("404 Not Found".into(), vec![]));
                    if said == "never" {
                        std::future::pending::<()>().await;
                    }
                    let length = if said.contains("endless") {
                        String::new()
                    } else {
                        format!("Content-Length: {}\r\n", body.len())
                    };
                    let answer = format!("HTTP/1.1 {said}\r\n{length}Connection: close\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                    while stream.write_all(&body).await.is_ok() && said.contains("endless") {}
                });
            }
        });
        site
    }

    fn page(&self, path: &str, said: &str, body: impl Into<Vec<u8>>) -> String {
        self.pages
            .lock()
            .expect("no test thread panicked")
            .insert(path.to_owned(), (said.to_owned(), body.into()));
        format!("{}{path}", self.base)
    }

    fn html(&self, path: &str, body: &str) -> String {
        self.page(path, "200 OK\r\nContent-Type: text/html; charset=utf-8", body)
    }

    fn redirect(&self, path: &str, to: &str) -> String {
        self.page(path, &format!("302 Found\r\nLocation: {to}"), "")
    }

    fn times_asked(&self, path: &str) -> usize {
        let start = format!("GET {path} ");
        self.asked
            .lock()
            .expect("no test thread panicked")
            .iter()
            .filter(|head| head.starts_with(&start))
            .count()
    }
}

const ALLOWED: (&str, &str) = ("LOGCABIN_MEDIA_PREVIEW_ALLOWED_RANGES", "127.0.0.1");

async fn start(settings: &[(&str, &str)]) -> (TestServer, User) {
    let server = TestServer::start_with(settings).await;
    let ann = server.register("ann").await;
    (server, ann)
}

async fn preview(user: &User, url: &str) -> Answer {
    let path = format!("/_matrix/client/v1/media/preview_url?url={}", encode(url));
    user.http.request("GET", &path, Some(&user.access_token), None).await
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::new_rgb8(width, height)
        .write_to(&mut bytes, ImageFormat::Png)
        .expect("a picture is encoded");
    bytes.into_inner()
}

#[tokio::test]
async fn a_page_is_previewed_with_its_picture() {
    crate::harness::nodes::one_server!("each node fetches a page once");
    let site = Site::start().await;
    let picture = png(40, 30);
    site.page("/pictures/a.png", "200 OK\r\nContent-Type: image/png", picture.clone());
    let page = "<!doctype html><title>No</title><meta property='og:title' content='Ä title'>\
        <meta property='og:description' content='What it is'><meta property='og:type' content='article'>\
        <meta property='og:image' content='pictures/a.png'>";
    let url = site.html("/page", page);
    let (mut server, ann) = start(&[ALLOWED]).await;
    let seen = preview(&ann, &format!("{url}#part")).await.ok();
    let image = seen["og:image"].as_str().unwrap_or_else(|| panic!("{seen}")).to_owned();
    assert_eq!(
        seen,
        json!({
            "og:title": "Ä title", "og:description": "What it is", "og:type": "article",
            "og:image": image, "og:image:type": "image/png", "og:image:width": 40,
            "og:image:height": 30, "matrix:image:size": picture.len(),
        })
    );
    let media = image.strip_prefix("mxc://").unwrap();
    assert_eq!(ann.download(media).await.bytes, picture);
    // It is remembered, also for the old path, and asked for once by many.
    let old = format!("/_matrix/media/v3/preview_url?url={}", encode(&url));
    let old = ann.http.request("GET", &old, Some(&ann.access_token), None).await;
    assert_eq!(old.ok(), seen);
    assert_eq!(site.times_asked("/page"), 1);
    let other = site.html("/other", page);
    let asking: Vec<_> = (0..5)
        .map(|_| {
            tokio::spawn({
                let (ann, other) = (ann.clone(), other.clone());
                async move { preview(&ann, &other).await.ok() }
            })
        })
        .collect();
    for asked in asking {
        assert_eq!(asked.await.unwrap()["og:image"], image, "the same picture is kept once");
    }
    assert_eq!(site.times_asked("/other"), 1);
    // Only for those who are logged in; the picture outlives the server.
    let anonymous = format!("/_matrix/client/v1/media/preview_url?url={}", encode(&url));
    ann.http.request("GET", &anonymous, None, None).await.refused(401, "M_MISSING_TOKEN");
    server.restart().await;
    assert_eq!(ann.download(media).await.bytes, picture);
}

#[tokio::test]
async fn every_kind_of_answer_is_borne() {
    let site = Site::start().await;
    let (_server, ann) = start(&[ALLOWED, ("LOGCABIN_MEDIA_PREVIEW_IMAGE_BYTES", "5000")]).await;
    let plain = site.html("/plain", "<title>Only a title</title>");
    assert_eq!(preview(&ann, &plain).await.ok(), json!({ "og:title": "Only a title" }));
    let latin = site.page(
        "/latin",
        "200 OK\r\nContent-Type: text/html",
        &b"<meta charset=latin1><title>Gr\xfc\xdfe</title>"[..],
    );
    assert_eq!(preview(&ann, &latin).await.ok(), json!({ "og:title": "Grüße" }));
    let picture = site.page("/picture", "200 OK\r\nContent-Type: image/png", png(7, 5));
    let seen = preview(&ann, &picture).await.ok();
    assert_eq!((&seen["og:image:width"], &seen["og:image:height"]), (&json!(7), &json!(5)));
    let pdf = site.page("/pdf", "200 OK\r\nContent-Type: application/pdf", "%PDF");
    assert_eq!(preview(&ann, &pdf).await.ok(), json!({}));
    let endless = site.page(
        "/endless",
        "200 OK\r\nContent-Type: text/html\r\nX: endless",
        "<title>Long</title>".repeat(1000),
    );
    assert_eq!(preview(&ann, &endless).await.ok(), json!({ "og:title": "Long" }));
    // A picture that is too large, broken, or not there is left out.
    let noise: Vec<u8> = png(2, 2).into_iter().chain((0..10_000_u32).map(|n| n as u8)).collect();
    site.page("/large.png", "200 OK\r\nContent-Type: image/png", noise);
    site.page("/broken.png", "200 OK\r\nContent-Type: image/png", "no picture");
    for name in ["large.png", "broken.png", "missing.png"] {
        let url =
            site.html(&format!("/with-{name}"), &format!("<title>T</title><img src=/{name}>"));
        assert_eq!(preview(&ann, &url).await.ok(), json!({ "og:title": "T" }), "{name}");
    }
    for path in ["/missing"] {
        preview(&ann, &format!("{}{path}", site.base)).await.refused(502, "M_UNKNOWN");
    }
    preview(&ann, "http://127.0.0.1:1/").await.refused(502, "M_UNKNOWN");
    for address in ["", "no address", "ftp://example.org/", "file:///etc/passwd", "/etc/passwd"] {
        let refused = preview(&ann, address).await;
        assert!(refused.status == 400, "{address}: {refused}");
    }
}

#[tokio::test]
async fn redirects_are_followed_for_a_while() {
    let site = Site::start().await;
    let (_server, ann) = start(&[ALLOWED]).await;
    site.html("/end", "<title>End</title><img src=relative.png>");
    site.redirect("/two", "/end");
    let one = site.redirect("/one", &format!("{}/two", site.base));
    assert_eq!(preview(&ann, &one).await.ok()["og:title"], "End");
    let around = site.redirect("/around", "/around");
    preview(&ann, &around).await.refused(502, "M_UNKNOWN");
    assert_eq!(site.times_asked("/around"), 6);
}

#[tokio::test]
async fn addresses_that_are_not_public_are_refused() {
    let site = Site::start().await;
    let secret = site.html("/secret", "<title>Secret</title>");
    let port = secret.rsplit(':').next().unwrap().to_owned();
    let (_server, ann) = start(&[]).await;
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "[fc00::1]",
        "[fe80::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
    ] {
        let refused = preview(&ann, &format!("http://{host}:{port}")).await;
        refused.refused(403, "M_FORBIDDEN");
    }
    assert_eq!(site.asked.lock().unwrap().len(), 0, "nobody came");
}

#[tokio::test]
async fn a_redirect_or_a_picture_leads_nowhere_private() {
    let site = Site::start().await;
    // Another site of this machine that is not allowed.
    let inner = Site::start().await;
    let inner_port = inner.base.rsplit(':').next().unwrap().to_owned();
    inner.html("/", "<title>Inner</title>");
    let (_server, ann) = start(&[ALLOWED]).await;
    for (number, host) in
        ["127.0.0.2", "[::1]", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.2]"]
            .iter()
            .enumerate()
    {
        let url = site.redirect(&format!("/to-{number}"), &format!("http://{host}:{inner_port}/"));
        preview(&ann, &url).await.refused(403, "M_FORBIDDEN");
        let page = format!("<title>Outer</title><img src='http://{host}:{inner_port}/'>");
        let url = site.html(&format!("/picture-{number}"), &page);
        assert_eq!(preview(&ann, &url).await.ok(), json!({ "og:title": "Outer" }));
    }
    let url = site.redirect("/to-a-file", "file:///etc/passwd");
    preview(&ann, &url).await.refused(502, "M_UNKNOWN");
    assert_eq!(inner.asked.lock().unwrap().len(), 0, "nobody came");
}

#[tokio::test]
async fn previews_are_off_when_the_settings_say_so() {
    let (_server, ann) = start(&[("LOGCABIN_MEDIA_URL_PREVIEWS", "false")]).await;
    preview(&ann, "https://example.org/").await.refused(404, "M_UNRECOGNIZED");

    let site = Site::start().await;
    let denied = ("LOGCABIN_MEDIA_PREVIEW_DENIED_URLS", "*.denied.example,127.0.0.1/private/*");
    let (_server, ann) = start(&[ALLOWED, denied]).await;
    let secret = site.html("/private/page", "<title>Private</title>");
    preview(&ann, &secret).await.refused(403, "M_FORBIDDEN");
    preview(&ann, "https://www.denied.example/").await.refused(403, "M_FORBIDDEN");
    let to_it = site.redirect("/to-it", "/private/page");
    preview(&ann, &to_it).await.refused(403, "M_FORBIDDEN");
    let open = site.html("/open", "<title>Open</title>");
    assert_eq!(preview(&ann, &open).await.ok()["og:title"], "Open");
    assert_eq!(site.times_asked("/private/page"), 0);
}

#[tokio::test]
async fn pictures_of_pages_have_a_quota() {
    let site = Site::start().await;
    let small = png(3, 3);
    let most = (small.len() + 10).to_string();
    let (_server, ann) = start(&[ALLOWED, ("LOGCABIN_MEDIA_PREVIEW_STORE_BYTES", &most)]).await;
    let mut with_picture = Vec::new();
    for number in 1..=2 {
        let name = format!("/{number}.png");
        site.page(&name, "200 OK\r\nContent-Type: image/png", png(3, 2 + number));
        let url =
            site.html(&format!("/page-{number}"), &format!("<title>T</title><img src={name}>"));
        let seen: Value = preview(&ann, &url).await.ok();
        with_picture.push(seen.get("og:image").is_some());
    }
    assert_eq!(with_picture, [true, false]);
}
