//! Uploads, downloads and thumbnails (client-server API, "Content repository").

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use image::codecs::gif::{GifEncoder, Repeat};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPDecoder;
use image::{
    AnimationDecoder as _, DynamicImage, Frame, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage,
};
use logcabin::media::webp::Animation;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{server, user};
use crate::crash::assert_verifies;
use crate::harness::{RawAnswer, TestServer, User, encode, until};

pub(super) const V1: &str = "/_matrix/client/v1/media";

impl User {
    /// Sends any bytes with this user's token.
    pub(crate) async fn send_bytes(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<bytes::Bytes>,
    ) -> RawAnswer {
        let token = format!("Bearer {}", self.access_token);
        let mut all = vec![("authorization", &*token)];
        all.extend(headers);
        self.http.raw(method, path, &all, body).await
    }

    /// Uploads a file and gives what follows `mxc://`.
    pub(crate) async fn upload(&self, content_type: &str, body: impl Into<bytes::Bytes>) -> String {
        let headers = [("content-type", content_type)];
        let answer = self.send_bytes("POST", "/_matrix/media/v3/upload", &headers, body).await;
        media_id(&answer.json().ok_string("content_uri"))
    }

    pub(super) async fn get_bytes(&self, path: &str, headers: &[(&str, &str)]) -> RawAnswer {
        self.send_bytes("GET", path, headers, "").await
    }

    pub(crate) async fn download(&self, media: &str) -> RawAnswer {
        self.get_bytes(&format!("{V1}/download/{media}"), &[]).await
    }

    pub(crate) async fn thumbnail(&self, media: &str, wish: &str) -> RawAnswer {
        self.get_bytes(&format!("{V1}/thumbnail/{media}?{wish}"), &[]).await
    }

    /// Is given a media id to upload to.
    pub(super) async fn reserve(&self) -> String {
        let created = self.send_bytes("POST", "/_matrix/media/v1/create", &[], "").await.json();
        media_id(&created.ok_string("content_uri"))
    }

    pub(super) async fn upload_to(&self, media: &str, body: &'static str) -> RawAnswer {
        let path = format!("/_matrix/media/v3/upload/{media}");
        self.send_bytes("PUT", &path, &[("content-type", "text/plain")], body).await
    }
}

pub(super) fn media_id(address: &str) -> String {
    let media = address.strip_prefix("mxc://").unwrap_or_else(|| panic!("not mxc: {address}"));
    media.to_owned()
}

#[track_caller]
pub(super) fn is(answer: &RawAnswer, status: u16) {
    assert_eq!(answer.parts.status, status, "{}", answer.bytes.escape_ascii());
}

/// Files in the directories for files.
pub(super) fn stored(data_dir: &Path) -> Vec<PathBuf> {
    let inside = |directory: &Path| -> Vec<PathBuf> {
        fs::read_dir(directory)
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("a directory of the server").path())
            .collect()
    };
    let is_part = |path: &PathBuf| path.file_name().expect("a file has a name").len() == 2;
    let outer = inside(&data_dir.join("media")).into_iter().filter(is_part);
    outer.flat_map(|outer| inside(&outer)).flat_map(|inner| inside(&inner)).collect()
}

fn incoming(data_dir: &Path) -> usize {
    fs::read_dir(data_dir.join("media/incoming")).expect("a directory of the server").count()
}

#[tokio::test]
async fn a_file_comes_back_as_it_was_uploaded() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let content: Vec<u8> = (0..=255).cycle().take(700_000).collect();
    let headers = [("content-type", "image/png")];
    let path = "/_matrix/media/v3/upload?filename=a%20picture.png";
    let answer = ann.send_bytes("POST", path, &headers, content.clone()).await;
    let media = media_id(&answer.json().ok_string("content_uri"));

    let answer = bob.download(&media).await;
    is(&answer, 200);
    assert_eq!(answer.bytes, content);
    assert_eq!(answer.header("content-type"), "image/png");
    assert_eq!(answer.header("content-disposition"), "inline; filename=\"a picture.png\"");
    assert_eq!(answer.header("content-length"), "700000");
    assert_eq!(answer.header("cross-origin-resource-policy"), "cross-origin");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    let policy = answer.header("content-security-policy");
    assert!(policy.starts_with("sandbox; default-src 'none';"), "{policy}");
    assert!(answer.header("cache-control").contains("immutable"));
    let tag = answer.header("etag").to_owned();
    assert_eq!(tag, format!("\"{}\"", blake3::hash(&content)));

    let path = format!("{V1}/download/{media}");
    let known = bob.get_bytes(&path, &[("if-none-match", &tag)]).await;
    is(&known, 304);
    assert!(known.bytes.is_empty() && known.header("etag") == tag);
    let head = bob.send_bytes("HEAD", &path, &[], "").await;
    is(&head, 200);
    assert!(head.bytes.is_empty() && head.header("content-length") == "700000");
    let named = bob.get_bytes(&format!("{path}/Gr%C3%BC%C3%9Fe.png"), &[]).await;
    assert_eq!(named.header("content-disposition"), "inline; filename*=utf-8''Gr%C3%BC%C3%9Fe.png");
    let other = bob.get_bytes(&format!("/_svc/client/v1/media/download/{media}"), &[]).await;
    assert_eq!(other.bytes, content);
    // Only for those who are logged in.
    let anonymous = server.http().raw("GET", &path, &[], "").await;
    anonymous.json().refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn what_a_browser_might_run_is_not_shown_in_place() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for content_type in ["text/html", "image/svg+xml", "application/xhtml+xml", "nonsense"] {
        let media = ann.upload(content_type, "<script>alert(1)</script>").await;
        let answer = ann.download(&media).await;
        assert_eq!(answer.header("content-type"), content_type);
        assert_eq!(answer.header("content-disposition"), "attachment", "{content_type}");
    }
    let answer = ann.send_bytes("POST", "/_matrix/media/r0/upload", &[], "x").await;
    let media = media_id(&answer.json().ok_string("content_uri"));
    let answer = ann.download(&media).await;
    assert_eq!(answer.header("content-type"), "application/octet-stream");
    assert_eq!(answer.header("content-disposition"), "attachment");
}

#[tokio::test]
async fn a_part_of_a_file_is_given_when_it_is_asked_for() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let content: Vec<u8> = (0..600_000_u32).flat_map(u32::to_be_bytes).collect();
    let media = ann.upload("video/mp4", content.clone()).await;
    let path = format!("{V1}/download/{media}");
    for (range, expected) in [
        ("bytes=0-9", 0..10),
        ("bytes=1000000-1999999", 1_000_000..2_000_000),
        ("bytes=2399990-", 2_399_990..2_400_000),
        ("bytes=-5", 2_399_995..2_400_000),
    ] {
        let answer = ann.get_bytes(&path, &[("range", range)]).await;
        is(&answer, 206);
        let (first, last) = (expected.start, expected.end - 1);
        assert_eq!(answer.header("content-range"), format!("bytes {first}-{last}/2400000"));
        assert_eq!(answer.header("content-length"), expected.len().to_string());
        assert_eq!(answer.bytes, content[expected]);
    }
    let outside = ann.get_bytes(&path, &[("range", "bytes=2400000-")]).await;
    is(&outside, 416);
    assert_eq!(outside.header("content-range"), "bytes */2400000");
    let several = ann.get_bytes(&path, &[("range", "bytes=0-1,5-6")]).await;
    is(&several, 200);
    let tag = format!("\"{}\"", blake3::hash(&content));
    for (known, status) in [(&*tag, 206), ("\"another\"", 200)] {
        let headers = [("range", "bytes=0-1"), ("if-range", known)];
        is(&ann.get_bytes(&path, &headers).await, status);
    }
}

#[tokio::test]
async fn a_file_may_be_uploaded_after_its_address_is_known() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let media = ann.reserve().await;
    let path = format!("{V1}/download/{media}");
    let none = bob.get_bytes(&format!("{path}?timeout_ms=0"), &[]).await.json();
    none.refused(504, "M_NOT_YET_UPLOADED");
    let thumbnail = bob.thumbnail(&media, "width=1&height=1&timeout_ms=10").await.json();
    thumbnail.refused(504, "M_NOT_YET_UPLOADED");
    // Only who was given the address may use it.
    bob.upload_to(&media, "not mine").await.json().refused(403, "M_FORBIDDEN");
    let waiting = tokio::spawn({
        let bob = bob.clone();
        async move { bob.get_bytes(&format!("{path}?timeout_ms=60000"), &[]).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    ann.upload_to(&media, "here it is").await.json().ok();
    let waited = waiting.await.unwrap();
    is(&waited, 200);
    assert_eq!(waited.bytes, "here it is");
    ann.upload_to(&media, "again").await.json().refused(409, "M_CANNOT_OVERWRITE_MEDIA");
    // What was uploaded in one step cannot be overwritten, either.
    let whole = ann.upload("text/plain", "whole").await;
    ann.upload_to(&whole, "again").await.json().refused(409, "M_CANNOT_OVERWRITE_MEDIA");
    ann.upload_to("e2e.test/neverGivenOut", "x").await.json().refused(404, "M_NOT_FOUND");
    ann.upload_to("other.test/neverGivenOut", "x").await.json().refused(404, "M_NOT_FOUND");
    assert_eq!(bob.download(&media).await.bytes, "here it is");
}

#[tokio::test]
async fn addresses_without_a_file_lapse_and_are_few() {
    let settings = [("LOGCABIN_MEDIA_UNUSED_IDS", "2"), ("LOGCABIN_MEDIA_UNUSED_SECONDS", "3")];
    let server = TestServer::start_with(&settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let created = ann.send_bytes("POST", "/_matrix/media/v1/create", &[], "").await.json().ok();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let expires = u128::from(created["unused_expires_at"].as_u64().unwrap());
    assert!(expires <= now + 3000 && expires + 30_000 > now, "{created}");
    let first = media_id(created["content_uri"].as_str().unwrap());
    let second = ann.reserve().await;
    let refused = ann.send_bytes("POST", "/_matrix/media/v1/create", &[], "").await;
    let refused = refused.json().refused(429, "M_LIMIT_EXCEEDED");
    assert!((1..=3000).contains(&refused["retry_after_ms"].as_u64().unwrap()), "{refused}");
    bob.reserve().await;
    // One that is used counts no more.
    ann.upload_to(&second, "used").await.json().ok();
    ann.reserve().await;
    let path = format!("{V1}/download/{first}?timeout_ms=20");
    let began = std::time::Instant::now();
    loop {
        let answer = bob.get_bytes(&path, &[]).await.json();
        if answer.status == 404 {
            answer.refused(404, "M_NOT_FOUND");
            break;
        }
        answer.refused(504, "M_NOT_YET_UPLOADED");
        assert!(began.elapsed() < Duration::from_secs(30), "it does not lapse");
    }
    ann.upload_to(&first, "late").await.json().refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn files_have_a_largest_size_and_users_a_quota() {
    let settings = [
        ("LOGCABIN_MEDIA_MAX_UPLOAD_BYTES", "100000"),
        ("LOGCABIN_MEDIA_USER_QUOTA_BYTES", "250000"),
    ];
    let server = TestServer::start_with(&settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    for path in ["/_matrix/client/v1/media/config", "/_matrix/media/v3/config"] {
        let config = ann.get_bytes(path, &[]).await.json().ok();
        assert_eq!(config, json!({ "m.upload.size": 100_000 }));
    }
    let upload = |size| ann.send_bytes("POST", "/_matrix/media/v3/upload", &[], vec![7; size]);
    upload(100_001).await.json().refused(413, "M_TOO_LARGE");
    // Without a word on how long it is.
    let stream = TcpStream::connect(server.base().trim_start_matches("http://")).await.unwrap();
    let answer = chunked(stream, &ann.access_token, &[vec![1; 60_000], vec![2; 60_000]]).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("M_TOO_LARGE"), "{answer}");
    let stream = TcpStream::connect(server.base().trim_start_matches("http://")).await.unwrap();
    let answer = chunked(stream, &ann.access_token, &[vec![1; 50_000], vec![2; 50_000]]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    upload(100_000).await.json().ok();
    upload(50_001).await.json().refused(403, "M_FORBIDDEN");
    upload(50_000).await.json().ok();
    upload(1).await.json().refused(403, "M_FORBIDDEN");
    bob.upload("text/plain", "others may").await;
    until("refused uploads are gone", async || incoming(server.data_dir()) == 0).await;
    // Nothing is left of what was refused.
    assert_eq!(stored(server.data_dir()).len(), 4);
}

/// Uploads without a length and gives the answer.
async fn chunked(mut stream: TcpStream, token: &str, pieces: &[Vec<u8>]) -> String {
    let head = format!(
        "POST /_matrix/media/v3/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    let mut request = head.into_bytes();
    for piece in pieces {
        request.extend(format!("{:x}\r\n", piece.len()).as_bytes());
        request.extend(piece);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    // A server that refuses does not read to the end: what it has said by then counts.
    let _ = stream.write_all(&request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).expect("an answer in text")
}

#[tokio::test]
async fn equal_files_are_on_the_disk_once() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let (one, other) =
        (ann.upload("text/plain", "equal").await, bob.upload("image/png", "equal").await);
    assert_ne!(one, other);
    assert_eq!(stored(server.data_dir()).len(), 1);
    assert_eq!(ann.download(&other).await.header("content-type"), "image/png");
    assert_eq!(ann.download(&one).await.bytes, "equal");
}

#[tokio::test]
async fn an_interrupted_upload_leaves_nothing() {
    crate::harness::nodes::one_server!("it looks into the directory of one node");
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let begin = async || {
        let address = server.base().trim_start_matches("http://").to_owned();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /_matrix/media/v3/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
             Content-Length: 4000000\r\n\r\n",
            ann.access_token
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![5; 2_000_000]).await.unwrap();
        until("the upload has begun", async || incoming(server.data_dir()) == 1).await;
        stream
    };
    drop(begin().await);
    until("what was interrupted is gone", async || incoming(server.data_dir()) == 0).await;
    let _open = begin().await;
    server.restart().await;
    assert_eq!(incoming(server.data_dir()), 0);
    assert_eq!(stored(server.data_dir()).len(), 0);
    let media = ann.upload("text/plain", "whole").await;
    assert_eq!(ann.download(&media).await.bytes, "whole");
}

/// Half of a file that is to be put under a media id; the other half is not sent.
async fn half(server: &TestServer, user: &User, media: &str, content: &[u8]) -> TcpStream {
    let address = server.base().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    let head = format!(
        "PUT /_matrix/media/v3/upload/{media} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        user.access_token,
        content.len()
    );
    stream.write_all(head.as_bytes()).await.expect("the server reads");
    stream.write_all(&content[..content.len() / 2]).await.expect("the server reads");
    until("the upload has begun", async || incoming(server.data_dir()) == 1).await;
    stream
}

#[tokio::test]
async fn an_upload_cut_in_half_is_repeated_under_its_address_and_readers_wait_for_the_whole() {
    crate::harness::nodes::one_server!("readers wait on the node that has the upload");
    let mut server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let content: Vec<u8> = (0..=u8::MAX).cycle().take(3_000_001).collect();
    let media = ann.reserve().await;
    let put = format!("/_matrix/media/v3/upload/{media}");
    let waits = |media: &str| {
        let (bob, path) = (bob.clone(), format!("{V1}/download/{media}?timeout_ms=60000"));
        tokio::spawn(async move { bob.get_bytes(&path, &[]).await })
    };
    let not_yet = async || {
        let none = bob.get_bytes(&format!("{V1}/download/{media}?timeout_ms=0"), &[]).await;
        none.json().refused(504, "M_NOT_YET_UPLOADED");
    };
    // The connection is cut; whoever waits, goes on to wait.
    let reader = waits(&media);
    drop(half(&server, &ann, &media, &content).await);
    until("the half is gone", async || incoming(server.data_dir()) == 0).await;
    assert_eq!(stored(server.data_dir()).len(), 0);
    assert!(!reader.is_finished(), "half a file was given out");
    not_yet().await;
    // The server is killed; the address is the user's still.
    let open = half(&server, &ann, &media, &content).await;
    server.restart().await;
    drop((open, reader));
    assert_eq!((incoming(server.data_dir()), stored(server.data_dir()).len()), (0, 0));
    not_yet().await;
    let reader = waits(&media);
    let headers = [("content-type", "text/plain")];
    ann.send_bytes("PUT", &put, &headers, content.clone()).await.json().ok();
    let read = reader.await.unwrap();
    is(&read, 200);
    assert!(read.bytes == content, "it is not what was uploaded");
    // Nothing is on the disk but that, and it stays so.
    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    assert_eq!((incoming(server.data_dir()), stored(server.data_dir()).len()), (0, 1));
    assert!(bob.download(&media).await.bytes == content);
    // The same for one that is uploaded in one step.
    let again = ann.upload("text/plain", content.clone()).await;
    assert!(bob.download(&again).await.bytes == content);
    assert_eq!(stored(server.data_dir()).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_a_crash() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    for round in 0..3_u8 {
        let acknowledged = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let uploading: Vec<_> = (0..4_u8)
            .map(|task| {
                let (ann, base) = (ann.clone(), server.base());
                let acknowledged = std::sync::Arc::clone(&acknowledged);
                tokio::spawn(async move {
                    for number in 0..=u8::MAX {
                        let content = [round, task, number].repeat(20_000);
                        let token = format!("Bearer {}", ann.access_token);
                        let request =
                            http::Request::post(format!("{base}/_matrix/media/v3/upload"))
                                .header("authorization", token)
                                .body(http_body_util::Full::new(bytes::Bytes::from(
                                    content.clone(),
                                )))
                                .unwrap();
                        let Some(media) = try_upload(request).await else { return };
                        acknowledged.lock().unwrap().push((media, content));
                    }
                })
            })
            .collect();
        until("some uploads", async || {
            acknowledged.lock().unwrap().len() > 5 + usize::from(round) * 7
        })
        .await;
        server.kill9();
        for task in uploading {
            task.await.unwrap();
        }
        server.restart().await;
        let acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
        assert!(acknowledged.len() > 5);
        for (media, content) in acknowledged {
            let answer = ann.download(&media).await;
            is(&answer, 200);
            assert!(answer.bytes == content, "{media} is not what was uploaded");
        }
        assert_eq!(incoming(server.data_dir()), 0);
    }
    server.stop();
    assert_verifies(server.data_dir());
}

async fn try_upload(request: http::Request<http_body_util::Full<bytes::Bytes>>) -> Option<String> {
    use http_body_util::BodyExt as _;
    use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    let response =
        Client::builder(TokioExecutor::new()).build_http().request(request).await.ok()?;
    let body = response.into_body().collect().await.ok()?.to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).ok()?;
    body["content_uri"].as_str().map(media_id)
}

/// A picture in which each corner can be told from the others.
pub(super) fn picture(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let bright = |at: u32, most: u32| u8::try_from(at * 255 / most.max(1)).expect("a colour");
        Rgb([bright(x, width), bright(y, height), 40])
    })
}

pub(super) fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).expect("a picture is encoded");
    bytes.into_inner()
}

fn frames(count: u8) -> Vec<RgbaImage> {
    let frame = |number: u8| {
        RgbaImage::from_fn(300, 200, |x, y| {
            let on = (x + u32::from(number) * 20) % 100 < 50;
            Rgba([if on { 255 } else { 0 }, u8::try_from(y).expect("a colour"), number * 30, 255])
        })
    };
    (0..count).map(frame).collect()
}

fn gif(count: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    {
        let mut encoder = GifEncoder::new_with_speed(&mut bytes, 30);
        encoder.set_repeat(Repeat::Infinite).expect("a picture is encoded");
        encoder
            .encode_frames(frames(count).into_iter().map(Frame::new))
            .expect("a picture is encoded");
    }
    bytes
}

/// For people to look at: `LOGCABIN_THUMBNAILS=directory`.
fn show(name: &str, answer: &RawAnswer) {
    if let Ok(directory) = std::env::var("LOGCABIN_THUMBNAILS") {
        let end = answer.header("content-type").trim_start_matches("image/").to_owned();
        fs::write(Path::new(&directory).join(format!("{name}.{end}")), &answer.bytes)
            .expect("a directory to write to");
    }
}

#[tokio::test]
async fn thumbnails_of_every_format_are_made() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let opaque = DynamicImage::from(picture(1200, 900));
    let mut clear = opaque.to_rgba8();
    clear
        .enumerate_pixels_mut()
        .for_each(|(x, _, pixel)| pixel.0[3] = if x < 600 { 0 } else { 255 });
    for (name, content_type, source, made) in [
        ("jpeg", "image/jpeg", encoded(&opaque, ImageFormat::Jpeg), "image/jpeg"),
        ("png", "image/png", encoded(&opaque, ImageFormat::Png), "image/jpeg"),
        ("clear", "image/png", encoded(&clear.clone().into(), ImageFormat::Png), "image/png"),
        ("gif", "image/gif", encoded(&opaque.to_rgba8().into(), ImageFormat::Gif), "image/jpeg"),
        ("webp", "image/webp", encoded(&clear.into(), ImageFormat::WebP), "image/png"),
        // What counts is what it is, not what it is called.
        ("misnamed", "image/png", encoded(&opaque, ImageFormat::Jpeg), "image/jpeg"),
    ] {
        let media = ann.upload(content_type, source.clone()).await;
        for (wish, size) in [
            ("width=32&height=32&method=crop", (32, 32)),
            ("width=90&height=90&method=crop", (96, 96)),
            ("width=200&height=50&method=crop", (320, 240)),
            ("width=100&height=100&method=scale", (320, 240)),
            ("width=800&height=600", (800, 600)),
        ] {
            let answer = ann.thumbnail(&media, wish).await;
            is(&answer, 200);
            assert_eq!(answer.header("content-type"), made, "{name} {wish}");
            let disposition = answer.header("content-disposition");
            assert!(disposition.starts_with("inline; filename=thumbnail."), "{disposition}");
            let thumbnail = image::load_from_memory(&answer.bytes).unwrap();
            assert_eq!((thumbnail.width(), thumbnail.height()), size, "{name} {wish}");
            let corner = thumbnail.to_rgba8().get_pixel(size.0 - 1, size.1 - 1).0;
            assert!(corner[0] > 150 && corner[3] == 255, "{name} {wish}: {corner:?}");
            show(&format!("{name}-{}x{}", size.0, size.1), &answer);
            // The next one comes from the disk, and is the same.
            assert_eq!(ann.thumbnail(&media, wish).await.bytes, answer.bytes);
        }
        // What would have to be larger than the usual sizes is given as it is.
        for wish in ["width=1200&height=900&method=crop", "width=1000&height=10&animated=true"] {
            assert_eq!(ann.thumbnail(&media, wish).await.bytes, source, "{name} {wish}");
        }
    }
}

#[tokio::test]
async fn thumbnails_are_upright() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let mut jpeg = Vec::new();
    JpegEncoder::new(&mut jpeg).encode_image(&picture(900, 600)).unwrap();
    // Orientation 6: to be turned to the right by 90 degrees.
    let exif =
        b"\xff\xe1\0\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let turned = [&jpeg[..2], exif, &jpeg[2..]].concat();
    let media = ann.upload("image/jpeg", turned).await;
    for (wish, size) in
        [("width=320&height=240", (160, 240)), ("width=96&height=96&method=crop", (96, 96))]
    {
        let answer = ann.thumbnail(&media, wish).await;
        is(&answer, 200);
        show(&format!("upright-{}x{}", size.0, size.1), &answer);
        let thumbnail = image::load_from_memory(&answer.bytes).unwrap().to_rgb8();
        assert_eq!(thumbnail.dimensions(), size);
        // What was on the left is on top, what was at the bottom on the left.
        let (top, bottom) = (thumbnail.get_pixel(0, 0).0, thumbnail.get_pixel(0, size.1 - 1).0);
        assert!(top[0] < bottom[0] && top[1] > 150, "{top:?} {bottom:?}");
    }
}

#[tokio::test]
async fn thumbnails_move_when_that_is_asked_for() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let mut webp = Animation::new((300, 200));
    for frame in frames(5) {
        webp.add(&frame, 80).unwrap();
    }
    for (name, content_type, source) in
        [("gif", "image/gif", gif(5)), ("webp", "image/webp", webp.finish(0))]
    {
        let media = ann.upload(content_type, source.clone()).await;
        let moving = "width=32&height=32&method=crop&animated=true";
        let answer = ann.thumbnail(&media, moving).await;
        is(&answer, 200);
        show(&format!("moving-{name}"), &answer);
        assert_eq!(answer.header("content-type"), "image/webp", "{name}");
        let decoder = WebPDecoder::new(Cursor::new(answer.bytes.clone())).unwrap();
        let decoded = decoder.into_frames().collect_frames().unwrap();
        assert_eq!(decoded.len(), 5, "{name}");
        assert_eq!(decoded[0].buffer().dimensions(), (32, 32));
        assert_ne!(decoded[0].buffer(), decoded[1].buffer());
        assert_eq!(ann.thumbnail(&media, moving).await.bytes, answer.bytes);
        // Small enough already: it moves as it is, or not at all.
        let whole = ann.thumbnail(&media, "width=400&height=400&animated=true").await;
        assert_eq!(whole.bytes, source);
        for still in ["width=32&height=32&method=crop", "width=400&height=400&animated=false"] {
            let answer = ann.thumbnail(&media, still).await;
            is(&answer, 200);
            assert_eq!(answer.header("content-type"), "image/jpeg", "{name} {still}");
        }
    }
}

#[tokio::test]
async fn bombs_and_broken_pictures_cost_nothing_but_their_thumbnail() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let small = DynamicImage::from(picture(64, 64));
    // A header that promises 60,000 by 60,000 pixels.
    let mut bomb = encoded(&small, ImageFormat::Png);
    bomb[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    let sum = crc(&bomb[12..29]).to_be_bytes();
    bomb[29..33].copy_from_slice(&sum);
    let mut wide = gif(2);
    wide[6..10].copy_from_slice(&[0xff; 4]);
    let mut lying = encoded(&small, ImageFormat::WebP);
    let end = lying.len() - 20;
    lying.truncate(end);
    let large = [encoded(&small, ImageFormat::Jpeg), vec![0; 65 * 1024 * 1024]].concat();
    let empty: Vec<u8> = Vec::new();
    for (name, content_type, source, status, code) in [
        ("bomb", "image/png", bomb, 413, "M_TOO_LARGE"),
        ("wide", "image/gif", wide, 413, "M_TOO_LARGE"),
        ("large", "image/jpeg", large, 413, "M_TOO_LARGE"),
        ("lying", "image/webp", lying, 400, "M_UNKNOWN"),
        ("cut", "image/png", encoded(&small, ImageFormat::Png)[..60].to_vec(), 400, "M_UNKNOWN"),
        ("text", "image/png", b"not a picture".to_vec(), 400, "M_UNKNOWN"),
        ("empty", "image/png", empty, 400, "M_UNKNOWN"),
    ] {
        let media = ann.upload(content_type, source.clone()).await;
        for wish in ["", "&animated=true"] {
            let wish = format!("width=16&height=16&method=crop{wish}");
            let answer = ann.thumbnail(&media, &wish).await;
            assert_eq!(answer.parts.status, status, "{name} {wish}");
            answer.json().refused(status, code);
        }
        let whole = ann.download(&media).await;
        assert!(whole.bytes == source, "{name}");
    }
    let media = ann.upload("image/png", encoded(&small, ImageFormat::Png)).await;
    for wish in [
        "",
        "width=1",
        "width=a&height=1",
        "width=-1&height=1",
        "width=0&height=1",
        "width=1&height=1&method=x",
    ] {
        let answer = ann.thumbnail(&media, wish).await;
        assert_eq!(answer.parts.status, 400, "{wish}: {}", answer.bytes.escape_ascii());
    }
    is(&ann.thumbnail(&media, "width=16&height=16&method=crop").await, 200);
}

/// The checksum of PNG.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 }
        })
    })
}

#[tokio::test]
async fn without_a_login_only_what_is_old_enough_is_served() {
    for setting in ["none", "all", "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"] {
        let server = TestServer::start_with(&[("LOGCABIN_MEDIA_UNAUTHENTICATED", setting)]).await;
        let ann = server.register("ann").await;
        let media =
            ann.upload("image/png", encoded(&picture(64, 64).into(), ImageFormat::Png)).await;
        for version in ["r0", "v3"] {
            for path in [
                format!("/_matrix/media/{version}/download/{media}"),
                format!("/_matrix/media/{version}/download/{media}/name.png"),
                format!(
                    "/_matrix/media/{version}/thumbnail/{media}?width=32&height=32&method=crop"
                ),
            ] {
                let answer = server.http().raw("GET", &path, &[], "").await;
                if matches!(setting, "none" | "2001-01-01T00:00:00Z") {
                    answer.json().refused(404, "M_NOT_FOUND");
                } else {
                    is(&answer, 200);
                    assert!(answer.header("cache-control").starts_with("public"));
                    assert_eq!(answer.header("x-content-type-options"), "nosniff");
                }
            }
        }
        is(&ann.download(&media).await, 200);
    }
}

#[tokio::test]
async fn other_servers_files_are_not_to_be_had() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for media in
        ["other.test/abc", "e2e.test/neverUploaded", "e2e.test/..%2F..%2Flock", "e2e.test/%00"]
    {
        ann.download(media).await.json().refused(404, "M_NOT_FOUND");
        let thumbnail = ann.thumbnail(media, "width=1&height=1").await;
        thumbnail.json().refused(404, "M_NOT_FOUND");
    }
    let bad = ann.download(&format!("{}/abc", encode("not a server!"))).await.json();
    assert_eq!(bad.status, 400, "{bad}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_takes_little_memory_both_ways() {
    crate::harness::nodes::one_server!("it measures the memory of one process");
    const SIZE: usize = 256 << 20;
    let server = TestServer::start_with(&[("LOGCABIN_MEDIA_MAX_UPLOAD_BYTES", "1073741824")]).await;
    let ann = server.register("ann").await;
    ann.upload("text/plain", "warm").await;
    let before = server.peak_memory();
    let address = server.base().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "POST /_matrix/media/v3/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         Connection: close\r\nContent-Length: {SIZE}\r\n\r\n",
        ann.access_token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut hasher = blake3::Hasher::new();
    for number in 0..SIZE >> 20 {
        let piece = vec![u8::try_from(number % 251).unwrap(); 1 << 20];
        hasher.update(&piece);
        stream.write_all(&piece).await.unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}")).1;
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let media = media_id(body["content_uri"].as_str().unwrap());

    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "GET {V1}/download/{media} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         Connection: close\r\n\r\n",
        ann.access_token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut received = vec![0; 1 << 20];
    let (mut start, mut length, mut again) = (Vec::new(), 0, blake3::Hasher::new());
    loop {
        let count = stream.read(&mut received).await.unwrap();
        if count == 0 {
            break;
        }
        if length > 0 {
            again.update(&received[..count]);
            length += count;
            continue;
        }
        start.extend_from_slice(&received[..count]);
        if let Some(end) = start.windows(4).position(|four| four == b"\r\n\r\n") {
            again.update(&start[end + 4..]);
            length = start.len() - end - 4;
        }
    }
    assert_eq!(length, SIZE);
    assert_eq!(again.finalize(), hasher.finalize());
    let grown = server.peak_memory().saturating_sub(before);
    println!("the server took {} MiB more than before", grown >> 20);
    assert!(grown < 64 << 20, "the server took {} MiB more than before", grown >> 20);
}
