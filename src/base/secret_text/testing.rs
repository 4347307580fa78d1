//! What tests of readers of secrets have in common.

/// Wrong ways to write `secret` as the value of a key in TOML: the text after `key = `.
pub fn wrong_in_toml(secret: &str) -> Vec<String> {
    let mut wrong: Vec<String> = [
        "S",
        "\"S",
        "'S",
        "S\"",
        "\"S\" S",
        "\"S\"S",
        "\"S\\q\"",
        "\"\\S\"",
        "\"S\\u12\"",
        "\"S\nS\"",
        "\"\"\"S",
        "\"\"\"S\"\"",
        "\"S\" = 1",
        "S = S",
        "S.S",
        "[\"S\"",
        "[\"S\"]]",
        "[\"S\" \"S\"]",
        "[S]",
        "{ S }",
        "{ a = \"S\"",
        "{ a = \"S\" b }",
        "\"S\u{7}\"",
        "#S",
        "= \"S\"",
        "\"S\"\nkey = \"S\"",
        "[\"S\", 5]",
        "[[\"S\"]]",
        "{ a = \"S\" }",
        "{ S = 1 }",
    ]
    .iter()
    .map(|form| form.replace('S', secret))
    .collect();
    // As a number with the digits of the secret.
    let digits: String = secret.chars().filter(char::is_ascii_digit).collect();
    let numbers =
        ["D", "-D", "+D", "D.5", "0D", "D_", "Dx", "[D]", "{ a = D }", "1979-05-27TD", "0xD"];
    wrong.extend(numbers.iter().map(|form| form.replace('D', &digits)));
    wrong
}

/// Whether a message reveals more of a secret than any three of its characters.
pub fn is_told(secret: &str, message: &str) -> bool {
    let characters: Vec<char> = secret.chars().collect();
    characters.windows(4).any(|part| message.contains(&part.iter().collect::<String>()))
}
