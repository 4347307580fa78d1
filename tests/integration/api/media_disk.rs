//! Files on the disk: after restarts, damaged, and no longer named.

use std::fs;
use std::path::PathBuf;

use image::ImageFormat;
use logcabin::history::describe;
use logcabin::log::archive::ArchiveReader;
use logcabin::record::Offset;

use super::media::{V1, encoded, is, media_id, picture, stored};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, run_logcabin, until};

#[tokio::test]
async fn files_outlive_restarts_and_are_verified() {
    crate::harness::nodes::one_server!("it damages the file of one node");
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let headers = [("content-type", "text/plain")];
    let path = "/_matrix/media/v3/upload?filename=note.txt";
    let answer = ann.send_bytes("POST", path, &headers, "remember").await;
    let media = media_id(&answer.json().ok_string("content_uri"));
    let reserved = ann.reserve().await;
    server.restart().await;
    let answer = ann.download(&media).await;
    assert_eq!(answer.bytes, "remember");
    assert_eq!(answer.header("content-disposition"), "inline; filename=note.txt");
    ann.upload_to(&reserved, "later").await.json().ok();
    server.stop();
    assert_verifies(server.data_dir());

    let archive = server.data_dir().join("archive");
    let records = ArchiveReader::open(&archive).unwrap().records(Offset::new(1));
    let said: Vec<_> = records
        .map(|record| describe::of_record(&record.unwrap()))
        .map(|words| format!("{} {}", words.who, words.text))
        .collect();
    let id = |media: &str| media.strip_prefix("e2e.test/").unwrap().to_owned();
    for expected in [
        format!("@ann:e2e.test uploaded {} (8 bytes of text/plain, \"note.txt\")", id(&media)),
        format!("@ann:e2e.test was given the media id {}", id(&reserved)),
        format!("@ann:e2e.test uploaded {} (5 bytes of text/plain)", id(&reserved)),
    ] {
        assert!(said.contains(&expected), "{expected:?} is not in {said:#?}");
    }

    // Damage is found, and named.
    let file =
        stored(server.data_dir()).into_iter().find(|file| fs::read(file).unwrap() == b"remember");
    fs::write(file.unwrap(), "r3member").unwrap();
    let verify = ["verify".as_ref(), "--data-dir".as_ref(), server.data_dir().as_os_str()];
    let output = run_logcabin(verify);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("mxc://{media}")), "{said}");
}

#[tokio::test]
async fn a_damaged_file_is_not_served_and_the_log_says_so_once() {
    crate::harness::nodes::one_server!("it damages the file of one node");
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let large = |seed: u8| (0..1_000_000_u32).map(|n| (n % 251) as u8 ^ seed).collect::<Vec<_>>();
    let small = ann.upload("text/plain", "remember").await;
    let [cut, flipped, gone] = [large(1), large(2), large(3)];
    let cut = (ann.upload("text/plain", cut.clone()).await, cut);
    let flipped = (ann.upload("text/plain", flipped.clone()).await, flipped);
    let gone = (ann.upload("text/plain", gone.clone()).await, gone);
    let png = encoded(&picture(900, 900).into(), ImageFormat::Png);
    let drawn = ann.upload("image/png", png.clone()).await;
    let wish = "width=640&height=480&method=scale";
    let thumbnail = ann.thumbnail(&drawn, wish).await;
    is(&thumbnail, 200);

    let file = |content: &[u8]| {
        let found = stored(server.data_dir());
        found.into_iter().find(|file| fs::read(file).unwrap() == content).expect("it is stored")
    };
    let (small_file, flipped_file) = (file(b"remember"), file(&flipped.1));
    fs::write(&small_file, "r3member").unwrap();
    fs::write(file(&cut.1), &cut.1[..999_999]).unwrap();
    fs::remove_file(file(&gone.1)).unwrap();
    let mut bytes = flipped.1.clone();
    bytes[500_000] ^= 1;
    fs::write(&flipped_file, bytes).unwrap();
    for _ in 0..3 {
        for media in [&small, &cut.0, &gone.0] {
            let answer = ann.download(media).await;
            is(&answer, 404);
            assert!(!answer.parts.headers.contains_key("etag"), "{answer:?}");
            assert!(!answer.parts.headers.contains_key("cache-control"), "{answer:?}");
            answer.json().refused(404, "M_NOT_FOUND");
        }
        // What is too large to be looked at first breaks off before its end.
        let request = http::Request::get(format!("{}{V1}/download/{}", server.base(), flipped.0))
            .header("authorization", format!("Bearer {}", ann.access_token))
            .body(Default::default())
            .unwrap();
        let broken_off = ann.http.try_raw(request).await;
        assert!(broken_off.is_err(), "{broken_off:?}");
    }
    // A kept thumbnail that is damaged is made again; of a damaged picture none is made.
    let thumbnails = || {
        let inside = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let all = inside(server.data_dir().join("media/thumbnails")).flat_map(inside);
        all.collect::<Vec<_>>()
    };
    for path in thumbnails() {
        let kept = fs::read(&path).unwrap();
        fs::write(&path, &kept[..kept.len() / 2]).unwrap();
    }
    let again = ann.thumbnail(&drawn, wish).await;
    is(&again, 200);
    assert_eq!(again.bytes, thumbnail.bytes);
    thumbnails().into_iter().for_each(|path| fs::remove_file(path).unwrap());
    let drawn_file = file(&png);
    fs::write(&drawn_file, &png[..png.len() - 1]).unwrap();
    is(&ann.thumbnail(&drawn, wish).await, 404);

    server.prints(&drawn_file.display().to_string()).await;
    let said = server.output();
    assert_eq!(said.matches("an uploaded file cannot be served").count(), 5, "{said}");
    // One that is uploaded again is whole again.
    ann.upload("text/plain", "remember").await;
    assert_eq!(ann.download(&small).await.bytes, "remember");
    server.stop();
    let verify = ["verify".as_ref(), "--data-dir".as_ref(), server.data_dir().as_os_str()];
    let output = run_logcabin(verify);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for media in [&cut.0, &gone.0, &flipped.0, &drawn] {
        assert!(said.contains(&format!("mxc://{media}")), "{media}: {said}");
    }
    assert!(!said.contains(&format!("mxc://{small}")), "{said}");
    assert!(said.contains("a backup may have it as media/"), "{said}");
}

#[tokio::test]
async fn files_that_nothing_names_are_deleted() {
    crate::harness::nodes::one_server!("it looks into the directory of one node");
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data");
    let stray = data_dir.join("media/ab/cd").join(format!("abcd{}", "0".repeat(60)));
    let other = data_dir.join("media/ab/cd/notes.txt");
    fs::create_dir_all(stray.parent().unwrap()).unwrap();
    for file in [&stray, &other] {
        fs::write(file, "lost").unwrap();
    }
    let mut server = TestServer::start_on(&data_dir).await;
    let ann = server.register("ann").await;
    let media = ann.upload("text/plain", "kept").await;
    server.stop();
    // It is young, and may be what a restore is about to bring back.
    assert!(stray.exists());
    let server =
        TestServer::start_on_with(&data_dir, &[("LOGCABIN_MEDIA_ORPHAN_SECONDS", "0")]).await;
    until("the stray file is gone", async || !stray.exists()).await;
    assert!(other.exists(), "what is not the server's is left alone");
    let ann = User::login(&server.http(), "ann", super::PASSWORD).await;
    assert_eq!(ann.download(&media).await.bytes, "kept");
}
