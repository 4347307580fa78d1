//! Reads the OpenGraph data of a web page for a preview.

use std::cell::RefCell;

use encoding_rs::{Encoding, UTF_8};
use html5ever::tokenizer::{CharacterTokens, EndTag};
use html5ever::{
    tendril::StrTendril,
    tokenizer::{
        BufferQueue, StartTag, Tag, TagToken, Token, TokenSink, TokenSinkResult, Tokenizer,
        TokenizerOpts,
        states::RawKind::{Rawtext, Rcdata, ScriptData},
    },
};

use logcabin_base::limits;

/// How many properties are kept.
const PROPERTIES: usize = 100;

/// Where a page declares its encoding (HTML, "Determining the character encoding").
const ENCODING_BYTES: usize = 1024;

/// The metadata of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// OpenGraph properties (`og:title` and so on) in the order of the page, each once.
    pub properties: Vec<(String, String)>,
    /// The address of its picture, as written in the page.
    pub image: Option<String>,
    /// The base of relative addresses, as written in the page.
    pub base: Option<String>,
}

impl Page {
    /// The value of a property.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Reads a page whose response had this content type.
    pub fn read(bytes: &[u8], content_type: &str) -> Self {
        let text = decode(bytes, content_type);
        let tokenizer = Tokenizer::new(Reader::default(), TokenizerOpts::default());
        let input = BufferQueue::default();
        input.push_back(StrTendril::from_slice(&text));
        let _ = tokenizer.feed(&input);
        tokenizer.end();
        tokenizer.sink.0.into_inner().finish()
    }
}

/// The text of a page, decoded by its byte order mark, the response's content type, its own
/// declaration, or as UTF-8.
fn decode<'a>(bytes: &'a [u8], content_type: &str) -> std::borrow::Cow<'a, str> {
    let named = charset(content_type);
    let encoding = named.or_else(|| {
        let start = &bytes[..bytes.len().min(ENCODING_BYTES)];
        let start = String::from_utf8_lossy(start);
        charset(&start).or_else(|| xml_encoding(&start))
    });
    // A byte order mark overrides the declared encoding.
    encoding.unwrap_or(UTF_8).decode(bytes).0
}

/// The encoding that is named after `charset=`.
fn charset(text: &str) -> Option<&'static Encoding> {
    encoding_after("charset", text)
}

/// The encoding that the declaration of an XML document names.
fn xml_encoding(text: &str) -> Option<&'static Encoding> {
    let declaration = text.trim_start().strip_prefix("<?xml")?;
    encoding_after("encoding", declaration.split_once("?>")?.0)
}

fn encoding_after(name: &str, text: &str) -> Option<&'static Encoding> {
    let lower = text.to_ascii_lowercase();
    let (_, after) = lower.split_once(name)?;
    let after = after.trim_start().strip_prefix('=')?;
    let name = after.trim_start_matches(|c: char| c == '"' || c == '\'' || c.is_whitespace());
    let end = |c: char| !(c.is_ascii_alphanumeric() || "-_:.".contains(c));
    Encoding::for_label(name.split(end).next()?.as_bytes())
}

/// Collects metadata while the page is tokenized. Only tags and texts are examined; no tree is
/// built, whatever the page is like.
#[derive(Default)]
struct Reader(RefCell<ParsedPage>);

#[derive(Default)]
struct ParsedPage {
    properties: Vec<(String, String)>,
    description: Option<String>,
    title: String,
    heading: String,
    paragraph: String,
    icon: Option<String>,
    first_image: Option<String>,
    base: Option<String>,
    /// The element whose text is being read.
    within: Option<Text>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Title,
    Heading,
    Paragraph,
}

impl TokenSink for Reader {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let mut found = self.0.borrow_mut();
        match token {
            TagToken(tag) if tag.kind == StartTag => {
                found.start(&tag);
                // As a tree builder would, so that no script is read as tags.
                match &*tag.name {
                    "script" => TokenSinkResult::RawData(ScriptData),
                    "style" | "xmp" | "iframe" | "noembed" | "noframes" => {
                        TokenSinkResult::RawData(Rawtext)
                    }
                    "title" | "textarea" => TokenSinkResult::RawData(Rcdata),
                    "plaintext" => TokenSinkResult::Plaintext,
                    _ => TokenSinkResult::Continue,
                }
            }
            TagToken(tag) => {
                debug_assert!(tag.kind == EndTag);
                if matches!(&*tag.name, "title" | "h1" | "p") {
                    found.within = None;
                }
                TokenSinkResult::Continue
            }
            CharacterTokens(text) => {
                found.text(&text);
                TokenSinkResult::Continue
            }
            _ => TokenSinkResult::Continue,
        }
    }
}

impl ParsedPage {
    fn start(&mut self, tag: &Tag) {
        let attribute = |name: &str| {
            let found = tag.attrs.iter().find(|attribute| &*attribute.name.local == name);
            found.map(|attribute| tidy(&attribute.value)).filter(|value| !value.is_empty())
        };
        match &*tag.name {
            "meta" => {
                let name = attribute("property").or_else(|| attribute("name"));
                let (Some(name), Some(content)) = (name, attribute("content")) else { return };
                let name = name.to_ascii_lowercase();
                if name == "description" {
                    self.description.get_or_insert(content);
                } else if is_property(&name)
                    && self.properties.len() < PROPERTIES
                    && self.properties.iter().all(|(known, _)| *known != name)
                {
                    self.properties.push((name, content));
                }
            }
            "base" if self.base.is_none() => self.base = attribute("href"),
            "link" if self.icon.is_none() => {
                let relation = attribute("rel").unwrap_or_default().to_ascii_lowercase();
                let relations = ["apple-touch-icon", "icon", "image_src"];
                if relation.split(' ').any(|relation| relations.contains(&relation)) {
                    self.icon = attribute("href");
                }
            }
            "img" if self.first_image.is_none() => {
                // A tiny picture is a button or a tracking pixel.
                let side = |name| attribute(name).and_then(|side| side.parse::<u32>().ok());
                let tiny = |side: Option<u32>| side.is_some_and(|side| side < 32);
                if !tiny(side("width")) && !tiny(side("height")) {
                    self.first_image = attribute("src").filter(|src| !src.starts_with("data:"));
                }
            }
            "title" if self.title.is_empty() => self.within = Some(Text::Title),
            "h1" if self.heading.is_empty() => self.within = Some(Text::Heading),
            "p" if self.paragraph.trim().is_empty() => self.within = Some(Text::Paragraph),
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        let to = match self.within {
            Some(Text::Title) => &mut self.title,
            Some(Text::Heading) => &mut self.heading,
            Some(Text::Paragraph) => &mut self.paragraph,
            None => return,
        };
        if to.len() < 8 * limits::PREVIEW_TEXT_CHARS {
            to.push_str(text);
        }
    }

    fn finish(self) -> Page {
        let mut page = Page { properties: self.properties, image: None, base: self.base };
        let other = |page: &Page, name: &str| page.property(name).map(str::to_owned);
        let texts = |text: &str| Some(tidy(text)).filter(|text| !text.is_empty());
        let title = other(&page, "og:title")
            .or_else(|| other(&page, "twitter:title"))
            .or_else(|| texts(&self.title))
            .or_else(|| texts(&self.heading));
        let description = other(&page, "og:description")
            .or_else(|| other(&page, "twitter:description"))
            .or(self.description)
            .or_else(|| texts(&self.paragraph));
        page.image = ["og:image", "og:image:secure_url", "og:image:url", "twitter:image"]
            .iter()
            .find_map(|name| other(&page, name))
            .or(self.first_image)
            .or(self.icon);
        // The picture is described as the server has it, not as the page says.
        page.properties.retain(|(name, _)| {
            let own = ["og:title", "og:description"].contains(&name.as_str());
            name.starts_with("og:") && !own && !name.starts_with("og:image")
        });
        page.properties.extend(title.map(|title| ("og:title".to_owned(), title)));
        page.properties.extend(description.map(|text| ("og:description".to_owned(), text)));
        page
    }
}

fn is_property(name: &str) -> bool {
    name.len() <= 64 && (name.starts_with("og:") || name.starts_with("twitter:"))
}

/// A text with single spaces and bounded length.
fn tidy(text: &str) -> String {
    let mut tidy = String::new();
    for word in text.split_whitespace() {
        if !tidy.is_empty() {
            tidy.push(' ');
        }
        tidy.extend(word.chars().filter(|c| !c.is_control()));
        if let Some((end, _)) = tidy.char_indices().nth(limits::PREVIEW_TEXT_CHARS) {
            tidy.truncate(end);
            break;
        }
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(html: &str) -> Page {
        Page::read(html.as_bytes(), "text/html; charset=utf-8")
    }

    fn titled(page: &Page) -> (Option<&str>, Option<&str>) {
        (page.property("og:title"), page.property("og:description"))
    }

    #[test]
    fn open_graph_data_takes_precedence() {
        let page = read(
            "<html><head><title>No</title><meta name=description content=no>\
             <meta property='og:title' content='A &amp; B'><meta property=og:description content=yes>\
             <meta property=og:site_name content=Site><meta property=og:image content=/a.png>\
             <meta property=og:image:width content=7><base href='https://example.org/x/'></head>",
        );
        assert_eq!(titled(&page), (Some("A & B"), Some("yes")));
        assert_eq!(page.property("og:site_name"), Some("Site"));
        assert_eq!(page.property("og:image:width"), None);
        assert_eq!(page.image.as_deref(), Some("/a.png"));
        assert_eq!(page.base.as_deref(), Some("https://example.org/x/"));
    }

    #[test]
    fn a_page_without_open_graph_data_has_a_title_and_a_description_too() {
        let page = read(
            "<title>\n A\n  title </title><meta name='Description' content='What it is'><p>Text</p>\
             <img src=dot.gif width=1 height=1><img src=photo.jpg>",
        );
        assert_eq!(titled(&page), (Some("A title"), Some("What it is")));
        assert_eq!(page.image.as_deref(), Some("photo.jpg"));
        let page = read("<h1>Head</h1><p></p><p>First <b>words</b>.</p><p>More</p>");
        assert_eq!(titled(&page), (Some("Head"), Some("First words.")));
        assert_eq!(read(""), Page::default());
    }

    #[test]
    fn scripts_and_styles_are_not_read() {
        let page = read(
            "<script>document.write('<meta property=og:title content=bad>')</script>\
             <style><meta property=og:title content=bad></style><title><b>tag</b></title>\
             <!-- <meta property=og:title content=bad> -->",
        );
        assert_eq!(page.property("og:title"), Some("<b>tag</b>"));
    }

    #[test]
    fn every_encoding_is_read() {
        let title =
            |bytes: &[u8], kind| Page::read(bytes, kind).property("og:title").map(str::to_owned);
        assert_eq!(
            title(b"<title>Gr\xfc\xdfe</title>", "text/html; charset=\"ISO-8859-1\"").unwrap(),
            "Grüße"
        );
        let own = b"<meta charset=windows-1251><title>\xcf\xf0\xe8</title>";
        assert_eq!(title(own, "text/html").unwrap(), "При");
        let own = b"<meta http-equiv=Content-Type content='text/html; charset=Shift_JIS'><title>\x82\xa0</title>";
        assert_eq!(title(own, "text/html").unwrap(), "あ");
        let own =
            b"<?xml version='1.0' encoding='ISO-8859-1'?><html><title>\xfc encoding=utf-8</title>";
        assert_eq!(title(own, "application/xhtml+xml").unwrap(), "ü encoding=utf-8");
        assert_eq!(
            title("\u{feff}<title>ü</title>".as_bytes(), "text/html; charset=latin1").unwrap(),
            "ü"
        );
    }

    #[test]
    fn endless_texts_and_deep_pages_are_cut() {
        let page =
            read(&format!("<title>{}</title>{}", "word ".repeat(10_000), "<div>".repeat(100_000)));
        assert_eq!(page.property("og:title").unwrap().chars().count(), limits::PREVIEW_TEXT_CHARS);
        let many: String =
            (0..1000).map(|n| format!("<meta property=og:x{n} content=1>")).collect();
        assert!(read(&many).properties.len() <= PROPERTIES + 2);
    }
}
