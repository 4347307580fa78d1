//! Files of every kind that people send each other, and the events by which clients say so.

use std::io::Cursor;

use image::{ImageFormat, Rgb, RgbImage};
use serde_json::{Value, json};

/// A kind of file.
pub(crate) struct Kind {
    /// The type of its messages; none for stickers, which are events of their own.
    pub(crate) msgtype: Option<&'static str>,
    pub(crate) content_type: &'static str,
    pub(crate) name: &'static str,
    /// What a browser may do with it.
    pub(crate) disposition: &'static str,
    /// The other fields of its event.
    more: Value,
    /// The class of its event in matrix-nio.
    pub(crate) of_nio: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Kind {
    /// Image, video, audio, a voice message, files that browsers may show and not, a sticker.
    pub(crate) fn all() -> Vec<Self> {
        let kind = |msgtype, content_type, name, disposition, of_nio| Self {
            msgtype: Some(msgtype),
            content_type,
            name,
            disposition,
            more: json!({}),
            of_nio,
            bytes: any_bytes(name),
        };
        let image = kind("m.image", "image/png", "Grüße vom See.png", "inline", "RoomMessageImage");
        let audio = "RoomMessageAudio";
        let voice = kind("m.audio", "audio/ogg", "Voice message.ogg", "inline", audio);
        let waveform = json!({ "org.matrix.msc3245.voice": {},
            "org.matrix.msc1767.audio": { "duration": 2000, "waveform": [0, 512, 1024] } });
        vec![
            Self { bytes: png(), ..image },
            kind("m.video", "video/mp4", "film.mp4", "inline", "RoomMessageVideo"),
            kind("m.audio", "audio/mpeg", "song.mp3", "inline", audio),
            Self { more: waveform, ..voice },
            kind("m.file", "application/pdf", "paper.pdf", "attachment", "RoomMessageFile"),
            kind("m.file", "text/html", "page.html", "attachment", "RoomMessageFile"),
            kind("m.file", "text/plain", "100 % fine, really.txt", "inline", "RoomMessageFile"),
            Self {
                msgtype: None,
                ..kind("", "image/webp", "sticker.webp", "inline", "StickerEvent")
            },
        ]
    }

    /// The type of the events that name it.
    pub(crate) fn event_type(&self) -> &'static str {
        if self.msgtype.is_some() { "m.room.message" } else { "m.sticker" }
    }

    /// The content of an event that names it; `place` has its `url`, or its `file`.
    pub(crate) fn content(&self, place: &Value) -> Value {
        let info = json!({ "mimetype": self.content_type, "size": self.bytes.len() });
        let mut content = json!({ "body": self.name, "info": info });
        if let Some(msgtype) = self.msgtype {
            content["msgtype"] = msgtype.into();
        }
        for more in [&self.more, place] {
            for (name, value) in more.as_object().expect("an object") {
                content[name] = value.clone();
            }
        }
        content
    }
}

/// Bytes of every value, from a seed, that are no text.
fn any_bytes(seed: &str) -> Vec<u8> {
    let mut bytes = vec![0; 70_000];
    blake3::Hasher::new().update(seed.as_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A picture, larger than the thumbnails that are made of it.
fn png() -> Vec<u8> {
    let picture = RgbImage::from_fn(400, 300, |x, y| Rgb([(x % 256) as u8, (y % 256) as u8, 90]));
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).expect("a picture is encoded");
    bytes.into_inner()
}
