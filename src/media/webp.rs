//! Animated WebP: the container around individually encoded frames.
//!
//! The encoding library writes still pictures only. The container is a few chunks of RIFF
//! (<https://developers.google.com/speed/webp/docs/riff_container>).

use image::{
    ExtendedColorType, ImageEncoder as _, ImageResult, RgbaImage, codecs::webp::WebPEncoder,
};

/// An animation that is being built.
#[derive(Debug)]
pub struct Animation {
    size: (u32, u32),
    frames: Vec<u8>,
}

impl Animation {
    /// An empty animation of this width and height in pixels, each from 1 to 16384.
    pub const fn new(size: (u32, u32)) -> Self {
        Self { size, frames: Vec::new() }
    }

    /// Adds a frame of the animation's size, shown for this long.
    pub fn add(&mut self, frame: &RgbaImage, milliseconds: u32) -> ImageResult<()> {
        let mut alone = Vec::new();
        let (width, height) = frame.dimensions();
        WebPEncoder::new_lossless(&mut alone).write_image(
            frame,
            width,
            height,
            ExtendedColorType::Rgba8,
        )?;
        let Some(picture) = chunk(&alone, *b"VP8L") else {
            let error = std::io::Error::other("an encoded frame holds no picture");
            return Err(error.into());
        };
        let mut frame = Vec::with_capacity(16 + 8 + picture.len());
        // At the upper left corner.
        frame.extend([0; 6]);
        frame.extend(three_bytes(self.size.0 - 1));
        frame.extend(three_bytes(self.size.1 - 1));
        frame.extend(three_bytes(milliseconds.min(0xff_ffff)));
        // It replaces the previous frame, including transparent pixels.
        frame.push(0b10);
        push_chunk(&mut frame, *b"VP8L", picture);
        push_chunk(&mut self.frames, *b"ANMF", &frame);
        Ok(())
    }

    /// The approximate number of bytes so far.
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it has no frame yet.
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The file. The animation repeats `times` times, or forever if that is 0.
    pub fn finish(self, times: u16) -> Vec<u8> {
        const ALPHA: u8 = 0x10;
        const ANIMATED: u8 = 0x02;
        let mut about = vec![ALPHA | ANIMATED, 0, 0, 0];
        about.extend(three_bytes(self.size.0 - 1));
        about.extend(three_bytes(self.size.1 - 1));
        // No background, then the number of repeats.
        let mut repeats = vec![0; 4];
        repeats.extend(times.to_le_bytes());
        let mut content = b"WEBP".to_vec();
        push_chunk(&mut content, *b"VP8X", &about);
        push_chunk(&mut content, *b"ANIM", &repeats);
        content.extend(self.frames);
        let mut file = Vec::with_capacity(content.len() + 8);
        push_chunk(&mut file, *b"RIFF", &content);
        file
    }
}

fn three_bytes(number: u32) -> [u8; 3] {
    let [a, b, c, _] = number.to_le_bytes();
    [a, b, c]
}

fn push_chunk(to: &mut Vec<u8>, name: [u8; 4], content: &[u8]) {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    to.extend(name);
    to.extend(length.to_le_bytes());
    to.extend(content);
    if content.len() % 2 == 1 {
        to.push(0);
    }
}

/// The content of the first chunk of this name in a WebP file.
fn chunk(file: &[u8], name: [u8; 4]) -> Option<&[u8]> {
    let mut rest = file.get(12..)?;
    loop {
        let (head, after) = rest.split_at_checked(8)?;
        let length = u32::from_le_bytes(head[4..].try_into().ok()?);
        let length = usize::try_from(length).ok()?;
        if head[..4] == name {
            return after.get(..length);
        }
        rest = after.get(length + length % 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::{AnimationDecoder as _, Rgba, codecs::webp::WebPDecoder};

    use super::*;

    #[test]
    fn an_animation_can_be_decoded_again() {
        let mut animation = Animation::new((5, 3));
        for red in [0, 100, 255] {
            let frame = RgbaImage::from_pixel(5, 3, Rgba([red, 0, 0, 200]));
            animation.add(&frame, 40 + u32::from(red)).unwrap();
        }
        let decoder = WebPDecoder::new(Cursor::new(animation.finish(0))).unwrap();
        assert!(decoder.has_animation());
        let frames = decoder.into_frames().collect_frames().unwrap();
        let seen: Vec<_> = frames
            .iter()
            .map(|frame| {
                let delay = frame.delay().numer_denom_ms();
                (frame.buffer().get_pixel(4, 2).0, delay.0 / delay.1)
            })
            .collect();
        let red = |red: u8| ([red, 0, 0, 200], 40 + u32::from(red));
        assert_eq!(seen, [red(0), red(100), red(255)]);
    }
}
