//! Pictures that take much memory to decode.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat, RgbImage};

use super::media::is;
use crate::harness::TestServer;

/// A PNG of half a megabyte whose colour profile has half a gigabyte.
fn with_huge_profile() -> Vec<u8> {
    const MEGABYTES: u32 = 500;
    let mut plain = Cursor::new(Vec::new());
    let picture = DynamicImage::ImageRgb8(RgbImage::new(1000, 1000));
    picture.write_to(&mut plain, ImageFormat::Png).expect("a picture");
    let plain = plain.into_inner();
    let mut compress = flate2::Compress::new(flate2::Compression::best(), false);
    let mut block = Vec::with_capacity(1 << 20);
    let zeros = vec![0; 1 << 20];
    compress.compress_vec(&zeros, &mut block, flate2::FlushCompress::Full).expect("it compresses");
    let mut data = b"iCCPit\0\0\x78\x9c".to_vec();
    for _ in 0..MEGABYTES {
        data.extend(&block);
    }
    // An empty block that is the last, and the checksum of zeros.
    data.extend([1, 0, 0, 0xff, 0xff]);
    let length = u32::try_from((u64::from(MEGABYTES) << 20) % 65_521).expect("it is small");
    data.extend((length << 16 | 1).to_be_bytes());
    let mut checksum = flate2::Crc::new();
    checksum.update(&data);
    let length = u32::try_from(data.len() - 4).expect("it is small").to_be_bytes();
    // Behind the signature and the head.
    let (head, rest) = plain.split_at(8 + 25);
    [head, &length, &data, &checksum.sum().to_be_bytes(), rest].concat()
}

#[tokio::test]
async fn a_small_picture_with_a_huge_colour_profile_takes_little_memory() {
    crate::harness::nodes::one_server!("it measures the memory of one process");
    let server = TestServer::start().await;
    let ann = server.register("ann").await;
    let picture = with_huge_profile();
    assert!(picture.len() < 1 << 20, "{}", picture.len());
    let before = server.peak_memory();
    let media = ann.upload("image/png", picture).await;
    let thumbnail = ann.thumbnail(&media, "width=96&height=96&method=crop").await;
    is(&thumbnail, 200);
    assert!(thumbnail.bytes.len() < 100_000, "{}", thumbnail.bytes.len());
    let grown = server.peak_memory().saturating_sub(before) >> 20;
    println!("{grown} MiB more");
    assert!(grown < 64, "a thumbnail took {grown} MiB");
}
