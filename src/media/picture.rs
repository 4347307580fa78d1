//! Thumbnails: from a picture and a requested size to the bytes of a smaller picture.
//!
//! Pictures are hostile input. The dimensions in the header are checked against the limits before
//! anything is decoded. Callers decode a few at a time, off the async threads, where a decoder's
//! panic is just a failed thumbnail.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read as _, Seek},
    path::Path,
    time::Instant,
};

use image::{
    AnimationDecoder, DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder as _, ImageError,
    ImageFormat, ImageReader, Limits, RgbaImage,
    codecs::{
        gif::GifDecoder, jpeg::JpegEncoder, png::PngDecoder, png::PngEncoder, webp::WebPDecoder,
    },
    imageops::FilterType,
    metadata::{LoopCount, Orientation},
};

use super::{chunk_filter::FilteredPicture, webp::Animation};
use logcabin_base::limits;

/// The quality of JPEG thumbnails.
const JPEG_QUALITY: u8 = 85;

/// How a picture is fitted to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Cropped to the aspect ratio of the size, around the centre.
    Crop,
    /// Scaled to fit into the size.
    Scale,
}

/// A requested thumbnail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThumbnailSpec {
    /// The width, in pixels.
    pub width: u32,
    /// The height, in pixels.
    pub height: u32,
    pub method: Method,
    /// Whether it should be animated, if the picture is.
    pub animated: bool,
}

/// The sizes that the specification recommends, each made when a picture is uploaded (client-server
/// API, "Thumbnails"). There are no others, so requests for arbitrary sizes cost nothing more.
pub const USUAL: [ThumbnailSpec; 5] = [
    usual(32, 32, Method::Crop),
    usual(96, 96, Method::Crop),
    usual(320, 240, Method::Scale),
    usual(640, 480, Method::Scale),
    usual(800, 600, Method::Scale),
];

const fn usual(width: u32, height: u32, method: Method) -> ThumbnailSpec {
    ThumbnailSpec { width, height, method, animated: false }
}

/// The picture in its own size, for requests larger than any of [`USUAL`]: a thumbnail must
/// not be smaller than requested.
const WHOLE: ThumbnailSpec = usual(u32::MAX, u32::MAX, Method::Scale);

impl ThumbnailSpec {
    /// The thumbnail that answers this request: the next larger usual size, or the picture in its
    /// own size. A crop to an unusual aspect ratio is scaled instead.
    #[must_use]
    pub fn rounded(self) -> Self {
        let find = |method| {
            let covers = |usual: &&Self| {
                usual.method == method && usual.width >= self.width && usual.height >= self.height
            };
            USUAL.iter().find(covers).copied()
        };
        let is_square = self.method == Method::Crop && self.width == self.height;
        let cropped = is_square.then(|| find(Method::Crop)).flatten();
        let usual = cropped.or_else(|| find(Method::Scale)).unwrap_or(WHOLE);
        Self { animated: self.animated, ..usual }
    }

    /// The thumbnail's name in the store, without the extension.
    pub fn name(self) -> String {
        let method = match self.method {
            Method::Crop => "crop",
            Method::Scale => "scale",
        };
        let animated = if self.animated { "-animated" } else { "" };
        if self.width == WHOLE.width {
            return format!("whole{animated}");
        }
        format!("{}x{}-{method}{animated}", self.width, self.height)
    }
}

/// The supported formats of pictures and thumbnails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Jpeg,
    /// PNG, also animated.
    Png,
    Gif,
    Webp,
}

impl Format {
    pub const ALL: [Self; 4] = [Self::Jpeg, Self::Png, Self::Gif, Self::Webp];

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }

    pub const fn extension(self) -> &'static str {
        match self {
            Self::Jpeg => "jpg",
            Self::Png => "png",
            Self::Gif => "gif",
            Self::Webp => "webp",
        }
    }

    const fn of(format: ImageFormat) -> Option<Self> {
        match format {
            ImageFormat::Jpeg => Some(Self::Jpeg),
            ImageFormat::Png => Some(Self::Png),
            ImageFormat::Gif => Some(Self::Gif),
            ImageFormat::WebP => Some(Self::Webp),
            _ => None,
        }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thumbnail {
    /// The picture itself, because it is not larger.
    Original(Format),
    Made(Format, Vec<u8>),
}

/// Why there is no thumbnail.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    #[error("not a picture of a known format")]
    NotAPicture,
    #[error("the picture is too large")]
    TooLarge,
    #[error("the picture is broken: {0}")]
    Broken(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ImageError> for PictureError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Limits(_) => Self::TooLarge,
            error => Self::Broken(error.to_string()),
        }
    }
}

/// The information in a picture's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureInfo {
    pub format: Format,
    /// Its displayed width and height, in pixels.
    pub size: (u32, u32),
}

pub fn about(bytes: &[u8]) -> Result<PictureInfo, PictureError> {
    let (format, mut decoder) = open(FilteredPicture::new(Cursor::new(bytes))?)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok(PictureInfo { format, size: turned(decoder.dimensions(), orientation) })
}

/// Whether the picture in a file is animated.
pub fn moves(path: &Path) -> Result<bool, PictureError> {
    let (format, _) = open(source(path)?)?;
    moves_as(format, source(path)?)
}

/// Makes thumbnails of the picture in a file, one for each request. It takes time and memory: see
/// the module's documentation.
pub fn thumbnails(path: &Path, wishes: &[ThumbnailSpec]) -> Result<Vec<Thumbnail>, PictureError> {
    let (format, mut decoder) = open(source(path)?)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let size = turned(decoder.dimensions(), orientation);
    let profile = decoder.icc_profile().ok().flatten().filter(|profile| is_usable(profile));
    let moves = moves_as(format, source(path)?)?;
    let mut decoder = Some(decoder);
    let mut decoded = None;
    let mut answer = |wish: &ThumbnailSpec| {
        let plan = Plan::of(size, *wish);
        if moves && wish.animated {
            let Some(plan) = plan else { return Ok(Thumbnail::Original(format)) };
            match animate(format, source(path)?, plan)? {
                // A smaller picture with more bytes is useless.
                Some(made) if made.len() as u64 >= std::fs::metadata(path)?.len() => {
                    return Ok(Thumbnail::Original(format));
                }
                Some(made) => return Ok(Thumbnail::Made(Format::Webp, made)),
                None => {}
            }
        }
        let plan = match plan {
            Some(plan) => plan,
            // Clients get an animation only on request, otherwise its first frame.
            None if moves => Plan::whole(size),
            None => return Ok(Thumbnail::Original(format)),
        };
        if let Some(decoder) = decoder.take() {
            decoded = Some(DynamicImage::from_decoder(decoder)?);
        }
        let broken = || PictureError::Broken("it could not be decoded before".to_owned());
        let decoded = decoded.as_ref().ok_or_else(broken)?;
        let mut picture = plan.turned(orientation).carry_out(decoded);
        picture.apply_orientation(orientation);
        let (format, bytes) = encode(&picture, profile.clone())?;
        Ok(Thumbnail::Made(format, bytes))
    };
    wishes.iter().map(&mut answer).collect()
}

/// The picture in a file, or the first of its frames, decoded and encoded in its own size: nothing
/// of the file's bytes is left. For small pictures, which are their own thumbnails.
pub fn redrawn(path: &Path) -> Result<(Format, Vec<u8>), PictureError> {
    let (_, mut decoder) = open(source(path)?)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    encode(&picture, None)
}

fn source(path: &Path) -> Result<FilteredPicture<BufReader<File>>, PictureError> {
    let file = BufReader::new(File::open(path)?);
    if file.get_ref().metadata()?.len() > limits::PICTURE_FILE_BYTES {
        let mut start = Vec::new();
        file.take(64).read_to_end(&mut start)?;
        let known = image::guess_format(&start).ok().and_then(Format::of);
        return Err(known.map_or(PictureError::NotAPicture, |_| PictureError::TooLarge));
    }
    Ok(FilteredPicture::new(file)?)
}

/// A decoder of a picture that is within the limits.
fn open<'a>(
    source: impl BufRead + Seek + 'a,
) -> Result<(Format, impl ImageDecoder + 'a), PictureError> {
    let mut reader = ImageReader::new(source).with_guessed_format()?;
    let format = reader.format().and_then(Format::of).ok_or(PictureError::NotAPicture)?;
    reader.limits(bounds());
    let decoder = reader.into_decoder()?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(PictureError::Broken("it has no pixels".to_owned()));
    }
    if decoder.total_bytes() > limits::PICTURE_BYTES {
        return Err(PictureError::TooLarge);
    }
    Ok((format, decoder))
}

fn bounds() -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = Some(limits::PICTURE_SIDE);
    limits.max_image_height = Some(limits::PICTURE_SIDE);
    // Decoders keep a second copy of some pictures.
    limits.max_alloc = Some(2 * limits::PICTURE_BYTES);
    limits
}

/// Whether the picture has more than one frame.
fn moves_as(format: Format, source: impl BufRead + Seek) -> Result<bool, PictureError> {
    Ok(match format {
        Format::Jpeg => false,
        Format::Png => PngDecoder::with_limits(source, bounds())?.is_apng()?,
        Format::Webp => WebPDecoder::new(source)?.has_animation(),
        Format::Gif => {
            let mut decoder = GifDecoder::new(source)?;
            decoder.set_limits(bounds())?;
            // A broken second frame does not count.
            decoder.into_frames().take(2).filter(Result::is_ok).count() == 2
        }
    })
}

/// The thumbnail of an animation; `None` if it has too many frames, or too large ones.
fn animate(
    format: Format,
    source: impl BufRead + Seek,
    plan: Plan,
) -> Result<Option<Vec<u8>>, PictureError> {
    match format {
        Format::Jpeg => Ok(None),
        Format::Png => animate_frames(PngDecoder::with_limits(source, bounds())?.apng()?, plan),
        Format::Webp => animate_frames(WebPDecoder::new(source)?, plan),
        Format::Gif => {
            let mut decoder = GifDecoder::new(source)?;
            decoder.set_limits(bounds())?;
            animate_frames(decoder, plan)
        }
    }
}

fn animate_frames<'a>(
    decoder: impl AnimationDecoder<'a>,
    plan: Plan,
) -> Result<Option<Vec<u8>>, PictureError> {
    let began = Instant::now();
    let times = match decoder.loop_count() {
        LoopCount::Infinite => 0,
        LoopCount::Finite(times) => u16::try_from(times.get()).unwrap_or(u16::MAX),
    };
    let mut animation = Animation::new(plan.size);
    for (number, frame) in decoder.into_frames().enumerate() {
        let frame = match frame {
            Ok(frame) => frame,
            // Like browsers: show the frames that can be decoded.
            Err(_) if number > 0 => break,
            Err(error) => return Err(error.into()),
        };
        let (numerator, denominator) = frame.delay().numer_denom_ms();
        let frame: RgbaImage = plan.carry_out(&frame.into_buffer().into()).into_rgba8();
        animation.add(&frame, numerator / denominator.max(1))?;
        if number >= limits::THUMBNAIL_FRAMES
            || animation.len() > limits::THUMBNAIL_BYTES
            || began.elapsed() > limits::THUMBNAIL_TIME
        {
            return Ok(None);
        }
    }
    Ok((!animation.is_empty()).then(|| animation.finish(times)))
}

/// Encodes a picture as JPEG, or as PNG if it has transparency.
fn encode(
    picture: &DynamicImage,
    profile: Option<Vec<u8>>,
) -> Result<(Format, Vec<u8>), PictureError> {
    let mut bytes = Vec::new();
    let (width, height) = (picture.width(), picture.height());
    if picture.color().has_alpha() {
        let picture = picture.to_rgba8();
        if picture.pixels().any(|pixel| pixel.0[3] != u8::MAX) {
            let mut encoder = PngEncoder::new(&mut bytes);
            if let Some(profile) = profile {
                let _ = encoder.set_icc_profile(profile);
            }
            encoder.write_image(&picture, width, height, ExtendedColorType::Rgba8)?;
            return Ok((Format::Png, bytes));
        }
    }
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
    if let Some(profile) = profile {
        // Without the profile the colours are slightly off.
        let _ = encoder.set_icc_profile(profile);
    }
    encoder.write_image(&picture.to_rgb8(), width, height, ExtendedColorType::Rgb8)?;
    Ok((Format::Jpeg, bytes))
}

/// Whether a colour profile is for RGB, as in thumbnails, and no larger than those of real
/// pictures: it is copied into each thumbnail.
fn is_usable(profile: &[u8]) -> bool {
    profile.get(16..20) == Some(b"RGB ") && profile.len() as u64 <= limits::PICTURE_PROFILE_BYTES
}

const fn swaps_sides(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

const fn turned(size: (u32, u32), orientation: Orientation) -> (u32, u32) {
    if swaps_sides(orientation) { (size.1, size.0) } else { size }
}

/// How a picture is transformed: a part of it, around the centre, is scaled to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    part: (u32, u32),
    size: (u32, u32),
}

impl Plan {
    /// How to transform a picture of this size for the request. `None` if it is not larger: nothing
    /// is ever enlarged.
    fn of(source: (u32, u32), wish: ThumbnailSpec) -> Option<Self> {
        let (width, height) = source;
        if width <= wish.width && height <= wish.height
            || wish.width.max(wish.height) > limits::THUMBNAIL_SIDE
        {
            return None;
        }
        Some(match wish.method {
            Method::Scale => Self { part: source, size: fit(source, (wish.width, wish.height)) },
            Method::Crop => {
                let part = fit((wish.width, wish.height), source);
                let size = (part.0.min(wish.width), part.1.min(wish.height));
                // If the picture is too small in one dimension only, that dimension decides.
                Self { part, size }
            }
        })
    }

    const fn whole(size: (u32, u32)) -> Self {
        Self { part: size, size }
    }

    const fn turned(self, orientation: Orientation) -> Self {
        Self { part: turned(self.part, orientation), size: turned(self.size, orientation) }
    }

    fn carry_out(self, picture: &DynamicImage) -> DynamicImage {
        let (width, height) = (picture.width(), picture.height());
        let part = (self.part.0.min(width), self.part.1.min(height));
        let size = (self.size.0.min(part.0), self.size.1.min(part.1));
        if part == (width, height) {
            if size == part {
                return picture.clone();
            }
            return picture.resize_exact(size.0, size.1, FilterType::CatmullRom);
        }
        let part = picture.crop_imm((width - part.0) / 2, (height - part.1) / 2, part.0, part.1);
        part.resize_exact(size.0, size.1, FilterType::CatmullRom)
    }
}

/// The largest size with the aspect ratio of `shape` that fits into `bounds`, at least one pixel.
fn fit(shape: (u32, u32), bounds: (u32, u32)) -> (u32, u32) {
    let (width, height) = (u64::from(shape.0.max(1)), u64::from(shape.1.max(1)));
    let (most_width, most_height) = (u64::from(bounds.0), u64::from(bounds.1));
    let rounded = |of: u64, by: u64| (of + by / 2) / by;
    let (fit_width, fit_height) = if most_width * height <= most_height * width {
        (most_width, rounded(most_width * height, width))
    } else {
        (rounded(most_height * width, height), most_height)
    };
    let side = |side: u64, most: u64| u32::try_from(side.clamp(1, most.max(1))).unwrap_or(1);
    (side(fit_width, most_width), side(fit_height, most_height))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wish(width: u32, height: u32, method: Method) -> ThumbnailSpec {
        usual(width, height, method)
    }

    #[test]
    fn wishes_are_rounded_up_to_the_usual_sizes() {
        let rounded = |width, height, method| {
            let wish = wish(width, height, method).rounded();
            (wish.width, wish.height)
        };
        assert_eq!(rounded(32, 32, Method::Crop), (32, 32));
        assert_eq!(rounded(33, 33, Method::Crop), (96, 96));
        assert_eq!(rounded(97, 97, Method::Crop), (320, 240));
        assert_eq!(rounded(40, 20, Method::Crop), (320, 240));
        assert_eq!(rounded(10, 10, Method::Scale), (320, 240));
        assert_eq!(rounded(320, 241, Method::Scale), (640, 480));
        for (width, height) in [(801, 1), (1, 601), (2000, 2000)] {
            assert_eq!(rounded(width, height, Method::Scale), (u32::MAX, u32::MAX));
            assert_eq!(rounded(width, height, Method::Crop), (u32::MAX, u32::MAX));
        }
    }

    #[test]
    fn every_request_leads_to_one_of_few_sizes() {
        let mut names = std::collections::BTreeSet::new();
        for width in 1..1000 {
            for method in [Method::Crop, Method::Scale] {
                for height in [width, width / 2 + 1, 1] {
                    names.insert(wish(width, height, method).rounded().name());
                }
            }
        }
        assert_eq!(names.len(), USUAL.len() + 1, "{names:?}");
    }

    #[test]
    fn a_picture_is_cut_or_scaled() {
        let plan = |source, wish| Plan::of(source, wish).map(|plan| (plan.part, plan.size));
        let scale = wish(320, 240, Method::Scale);
        assert_eq!(plan((3200, 1200), scale), Some(((3200, 1200), (320, 120))));
        assert_eq!(plan((1200, 3200), scale), Some(((1200, 3200), (90, 240))));
        assert_eq!(plan((10_000, 1), scale), Some(((10_000, 1), (320, 1))));
        assert_eq!(plan((320, 240), scale), None);
        let crop = wish(96, 96, Method::Crop);
        assert_eq!(plan((300, 200), crop), Some(((200, 200), (96, 96))));
        assert_eq!(plan((300, 50), crop), Some(((50, 50), (50, 50))));
        assert_eq!(plan((96, 96), crop), None);
        assert_eq!(plan((5000, 5000), wish(4000, 10, Method::Crop)), None);
    }

    #[test]
    fn nothing_of_a_file_is_left_in_what_is_redrawn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("picture");
        let mut file = Cursor::new(Vec::new());
        let picture = DynamicImage::new_rgb8(20, 10);
        picture.write_to(&mut file, ImageFormat::Png).unwrap();
        let mut bytes = file.into_inner();
        bytes.extend(b"<script>");
        std::fs::write(&path, &bytes).unwrap();
        let small = wish(320, 240, Method::Scale);
        assert_eq!(thumbnails(&path, &[small]).unwrap(), [Thumbnail::Original(Format::Png)]);
        let (format, redrawn) = redrawn(&path).unwrap();
        assert_eq!(about(&redrawn).unwrap(), PictureInfo { format, size: (20, 10) });
        assert!(!redrawn.windows(8).any(|some| some == b"<script>"));
    }

    proptest! {
        #[test]
        fn nothing_is_enlarged_and_sides_stay_positive(
            source in (1..40_000_u32, 1..40_000_u32),
            size in (1..=2048_u32, 1..=2048_u32),
            crop: bool,
        ) {
            let method = if crop { Method::Crop } else { Method::Scale };
            if let Some(Plan { part, size: made }) = Plan::of(source, wish(size.0, size.1, method)) {
                prop_assert!(part.0 >= 1 && part.0 <= source.0 && part.1 >= 1 && part.1 <= source.1);
                prop_assert!(made.0 >= 1 && made.0 <= part.0 && made.1 >= 1 && made.1 <= part.1);
                prop_assert!(made.0 <= size.0 && made.1 <= size.1);
            }
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(start in 0..4_usize, rest: Vec<u8>) {
            let starts: [&[u8]; 4] = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\x20\0\0\0WEBP"];
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("picture");
            std::fs::write(&path, [starts[start], &rest].concat()).unwrap();
            let wish = wish(1, 1, Method::Crop);
            let _ = thumbnails(&path, &[wish, ThumbnailSpec { animated: true, ..wish }]);
        }
    }
}
