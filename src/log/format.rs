#![doc = include_str!("../../log_format.md")]

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use logcabin_record::{
        CHAIN_START, Class, Command, NewRecord, Offset, Origin, Record, Stream,
        codec::{self, Frame, Tip},
        command::{KINDS, RoomTyping},
    };

    const SPECIFICATION: &str = include_str!("../../log_format.md");

    /// The bytes of the first block of `hex`: pairs of digits, up to two spaces in a row.
    fn worked_example() -> Bytes {
        let (_, rest) = SPECIFICATION.split_once("```hex\n").unwrap();
        let (block, _) = rest.split_once("```").unwrap();
        block
            .lines()
            .filter_map(|line| line.split("  ").next())
            .flat_map(str::split_whitespace)
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect()
    }

    fn typing() -> RoomTyping {
        RoomTyping {
            room_id: "!r:example.org".try_into().unwrap(),
            user_id: "@ann:example.org".try_into().unwrap(),
            until_ms: 1_700_000_030_000,
            since: None,
        }
    }

    fn example() -> (Record, Vec<u8>) {
        let typing = typing();
        let new = NewRecord::new(
            Stream::room(&typing.room_id),
            Origin {
                user: typing.user_id.as_str().into(),
                device: "PHONE".into(),
                request: "r1".into(),
            },
            &Command::from(typing),
        );
        Tip::default().extend(new, 0, 1_700_000_000_000).unwrap()
    }

    #[test]
    fn the_worked_example_is_what_the_code_writes() {
        let (_, frame) = example();
        assert_eq!(worked_example(), frame);
    }

    #[test]
    fn the_worked_example_is_what_the_code_reads() {
        let frame = Frame::decode(&worked_example()).unwrap();
        frame.verify(&CHAIN_START).unwrap();
        let (record, _) = example();
        assert_eq!(frame.record, record);
        assert_eq!(record.offset(), Offset::new(1));
        assert_eq!(codec::encode_frame(&record).unwrap(), worked_example());
        let Some(Command::RoomTyping(read)) = record.command().unwrap() else {
            panic!("another command")
        };
        assert_eq!(read.until_ms, typing().until_ms);
    }

    #[test]
    fn every_kind_of_command_is_described() {
        for kind in KINDS {
            let class = match kind.class {
                Class::Rewindable => "rewindable",
                Class::MustNotRewind => "must not be rewound",
            };
            let ephemeral = if kind.ephemeral { " yes " } else { " " };
            let row = format!("\n| `{}` | {} | {class} |{ephemeral}| ", kind.name, kind.version);
            assert!(
                SPECIFICATION.contains(&row),
                "log_format.md should have a row that begins with {row:?}"
            );
        }
    }

    #[test]
    fn the_limits_are_the_ones_in_the_code() {
        for limit in
            [crate::MAX_PAYLOAD_BYTES, crate::MAX_HEADER_TEXT_BYTES, crate::MAX_BATCH_BYTES]
        {
            let digits = limit.to_string();
            let first = (digits.len() - 1) % 3 + 1;
            let (head, tail) = digits.split_at(first);
            let groups: Vec<&str> = tail
                .as_bytes()
                .chunks(3)
                .map(|group| std::str::from_utf8(group).unwrap())
                .collect();
            let written = [vec![head], groups].concat().join(",");
            assert!(SPECIFICATION.contains(&written), "{written}");
        }
    }
}
