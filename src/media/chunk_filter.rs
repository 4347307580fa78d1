//! A picture without the parts that its decoder would inflate and that nobody needs.
//!
//! The colour profile of a PNG (`iCCP`) is compressed: a file of half a megabyte may have one of
//! half a gigabyte, which the decoder inflates before it reports the width, once for each time that
//! the picture is opened. So the chunks of a PNG are examined first: a profile that is too large is
//! left out, and so are texts. The profiles of other formats are not compressed, and no larger than
//! the file.

use std::{
    io::{self, BufRead, Read, Seek, SeekFrom},
    ops::Range,
};

use flate2::bufread::ZlibDecoder;

use logcabin_base::limits;

/// How a PNG begins.
const PNG: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// A picture, some of whose chunks are left out.
#[derive(Debug)]
pub(super) struct FilteredPicture<R> {
    source: R,
    /// The parts of the source that are kept; empty if all of it is.
    kept: Vec<Range<u64>>,
    /// The part that is being read, and the position in the source.
    part: usize,
    at: u64,
    /// The position in the kept parts.
    position: u64,
}

impl<R: BufRead + Seek> FilteredPicture<R> {
    /// # Errors
    /// When the picture cannot be read, or has too many chunks that would be left out.
    pub(super) fn new(mut source: R) -> io::Result<Self> {
        source.rewind()?;
        let mut start = Vec::new();
        (&mut source).take(PNG.len() as u64).read_to_end(&mut start)?;
        let kept = if start == PNG { kept(&mut source)? } else { Vec::new() };
        let at = kept.first().map_or(0, |first| first.start);
        source.seek(SeekFrom::Start(at))?;
        Ok(Self { source, kept, part: 0, at, position: 0 })
    }
}

/// The parts of a PNG that are kept; empty if all of it is. The signature has been read.
fn kept(source: &mut (impl BufRead + Seek)) -> io::Result<Vec<Range<u64>>> {
    let (mut kept, mut from, mut at) = (Vec::new(), 0, PNG.len() as u64);
    let (mut has_profile, mut left) = (false, limits::PICTURE_CHUNKS);
    loop {
        let mut head = [0; 8];
        match source.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        let [a, b, c, d, kind @ ..] = head;
        let length = u64::from(u32::from_be_bytes([a, b, c, d]));
        let next = at + 8 + length + 4;
        let is_kept = match &kind {
            // A picture has one, and each costs work.
            b"iCCP" if !has_profile => {
                has_profile = true;
                let is_small = is_small(source, length)?;
                source.seek(SeekFrom::Start(at + 8))?;
                is_small
            }
            b"iCCP" | b"tEXt" | b"zTXt" | b"iTXt" => false,
            _ => true,
        };
        if !is_kept {
            let too_many = || io::Error::other("it has too many chunks of text");
            left = left.checked_sub(1).ok_or_else(too_many)?;
            if from < at {
                kept.push(from..at);
            }
            from = next;
        }
        source.seek_relative(i64::try_from(length + 4).unwrap_or(i64::MAX))?;
        at = next;
    }
    let end = source.seek(SeekFrom::End(0))?;
    if from > 0 && from < end {
        kept.push(from..end);
    }
    Ok(kept)
}

/// Whether the profile that comes next, compressed to `length` bytes, is small when inflated.
fn is_small(source: &mut impl BufRead, length: u64) -> io::Result<bool> {
    if length > limits::PICTURE_PROFILE_BYTES {
        return Ok(false);
    }
    let mut profile = source.take(length);
    let (mut name, mut method) = (Vec::new(), [0]);
    profile.read_until(0, &mut name)?;
    if profile.read_exact(&mut method).is_err() {
        return Ok(false);
    }
    let most = limits::PICTURE_PROFILE_BYTES;
    let inflated = io::copy(&mut ZlibDecoder::new(profile).take(most + 1), &mut io::sink());
    Ok(inflated.is_ok_and(|inflated| inflated <= most))
}

impl<R: BufRead + Seek> BufRead for FilteredPicture<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.kept.is_empty() {
            return self.source.fill_buf();
        }
        loop {
            let Some(part) = self.kept.get(self.part) else { return Ok(&[]) };
            let left = part.end.saturating_sub(self.at);
            if left > 0 {
                let buffer = self.source.fill_buf()?;
                let left = usize::try_from(left).unwrap_or(usize::MAX);
                return Ok(&buffer[..buffer.len().min(left)]);
            }
            self.part += 1;
            if let Some(part) = self.kept.get(self.part) {
                self.at = part.start;
                self.source.seek(SeekFrom::Start(part.start))?;
            }
        }
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount as u64;
        self.position += amount as u64;
        self.source.consume(amount);
    }
}

impl<R: BufRead + Seek> Read for FilteredPicture<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead + Seek> Seek for FilteredPicture<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.kept.is_empty() {
            return self.source.seek(to);
        }
        let all: u64 = self.kept.iter().map(|part| part.end - part.start).sum();
        let target = match to {
            SeekFrom::Start(target) => Some(target),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => all.checked_add_signed(by),
        };
        let target = target.ok_or(io::ErrorKind::InvalidInput)?;
        self.position = target;
        let mut left = target;
        for (number, part) in self.kept.iter().enumerate() {
            let length = part.end - part.start;
            if left < length {
                (self.part, self.at) = (number, part.start + left);
                self.source.seek(SeekFrom::Start(self.at))?;
                return Ok(target);
            }
            left -= length;
        }
        self.part = self.kept.len();
        Ok(target)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Cursor;

    use image::{ExtendedColorType, ImageEncoder as _, codecs::png::PngEncoder};
    use proptest::prelude::*;

    use super::*;

    /// A chunk with its checksum.
    fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
        let mut checksum = flate2::Crc::new();
        checksum.update(kind);
        checksum.update(data);
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        [&length, &kind[..], data, &checksum.sum().to_be_bytes()].concat()
    }

    /// A PNG of 400 by 400 pixels, with these chunks behind its head.
    pub(crate) fn png(chunks: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        let pixels = vec![100; 400 * 400 * 3];
        PngEncoder::new(&mut plain)
            .write_image(&pixels, 400, 400, ExtendedColorType::Rgb8)
            .unwrap();
        // The signature, and a head of 13 bytes.
        let (head, rest) = plain.split_at(8 + 25);
        [head, chunks, rest].concat()
    }

    /// A profile of this many megabytes, which compresses to almost nothing.
    pub(crate) fn profile(megabytes: u32) -> Vec<u8> {
        let zeros = vec![0; 1 << 20];
        let mut compress = flate2::Compress::new(flate2::Compression::best(), false);
        let mut block = Vec::with_capacity(1 << 20);
        compress.compress_vec(&zeros, &mut block, flate2::FlushCompress::Full).unwrap();
        let mut data = b"it\0\0\x78\x9c".to_vec();
        for _ in 0..megabytes {
            data.extend(&block);
        }
        // An empty block that is the last, and the checksum of zeros.
        data.extend([1, 0, 0, 0xff, 0xff]);
        let length = (u64::from(megabytes) << 20) % 65_521;
        data.extend((u32::try_from(length).unwrap() << 16 | 1).to_be_bytes());
        chunk(b"iCCP", &data)
    }

    fn sifted(picture: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        FilteredPicture::new(Cursor::new(picture)).unwrap().read_to_end(&mut all).unwrap();
        all
    }

    #[test]
    fn a_profile_that_inflates_to_much_is_left_out_and_a_small_one_is_not() {
        let huge = profile(500);
        assert!(huge.len() < 600_000, "{}", huge.len());
        let text = chunk(b"zTXt", b"Raw profile type iptc\0\0\x78\x9c");
        let small = {
            let mut made = Vec::new();
            let mut encoder = PngEncoder::new(&mut made);
            encoder.set_icc_profile(vec![7; 3000]).unwrap();
            encoder.write_image(&[1; 3], 1, 1, ExtendedColorType::Rgb8).unwrap();
            made
        };
        assert_eq!(sifted(&small), small);
        assert_eq!(sifted(&png(&[])), png(&[]));
        assert_eq!(sifted(&png(&huge)), png(&[]));
        assert_eq!(sifted(&png(&[&text[..], &huge, &text, &huge].concat())), png(&[]));
        // Other formats are left as they are.
        assert_eq!(sifted(&huge), huge);
        // A PNG that ends early.
        let cut = &png(&huge)[..200];
        assert_eq!(sifted(cut), png(&[])[..33]);
    }

    #[test]
    fn a_picture_with_endless_texts_is_refused() {
        let text = [chunk(b"tEXt", b"a\0b"), chunk(b"gAMA", b"abcd")].concat();
        let picture = png(&text.repeat(limits::PICTURE_CHUNKS + 1));
        assert!(FilteredPicture::new(Cursor::new(picture)).is_err());
    }

    proptest! {
        #[test]
        fn it_is_read_from_any_place_like_a_file(
            texts in prop::collection::vec(0..50_usize, 0..5),
            seeks in prop::collection::vec((0..3_u8, -3000..3000_i64, 0..500_usize), 1..20),
        ) {
            let chunks: Vec<_> = texts
                .iter()
                .flat_map(|length| {
                    [chunk(b"tEXt", &vec![b'x'; *length]), chunk(b"eXIf", &vec![0; *length])].concat()
                })
                .collect();
            let picture = png(&chunks);
            let plain = sifted(&picture);
            let (mut one, mut other) = (FilteredPicture::new(Cursor::new(picture)).unwrap(), Cursor::new(plain));
            for (from, by, read) in seeks {
                let to = match from {
                    0 => SeekFrom::Start(by.unsigned_abs()),
                    1 => SeekFrom::Current(by),
                    _ => SeekFrom::End(by),
                };
                let sought = (one.seek(to).ok(), other.seek(to).ok());
                prop_assert_eq!(sought.0, sought.1);
                let (mut a, mut b) = (Vec::new(), Vec::new());
                (&mut one).take(read as u64).read_to_end(&mut a).unwrap();
                (&mut other).take(read as u64).read_to_end(&mut b).unwrap();
                prop_assert_eq!(a, b);
            }
        }
    }
}
