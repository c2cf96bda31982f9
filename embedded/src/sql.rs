//! As much of SQL as the server itself has to understand: where a statement ends, whether it begins or ends a transaction,
//! whether rows come with it, and what it is called when it is done.

use crate::engine::{Done, EngineError};

/// How an engine's SQL is cut into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "four independent facts")]
pub struct Dialect {
    /// A backslash in an ordinary string takes the character behind it with it.
    pub has_escapes: bool,
    /// `/* /* */ */` is one comment.
    pub has_nested_comments: bool,
    /// `$$ text $$` is a string.
    pub has_dollar_quotes: bool,
    /// Functions and procedures have bodies with semicolons in them.
    pub has_bodies: bool,
}

/// What a word is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lexeme {
    /// A key word, a name or a number.
    Word,
    /// A name in double quotes.
    Name,
    String,
    /// `$1`: its number.
    Parameter(usize),
    /// Any other character.
    Symbol,
}

/// A word of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub lexeme: Lexeme,
    pub text: &'a str,
    /// Where it begins in the whole text.
    pub start: usize,
}

impl Token<'_> {
    fn is(&self, word: &str) -> bool {
        matches!(self.lexeme, Lexeme::Word | Lexeme::Symbol) && self.text.eq_ignore_ascii_case(word)
    }

    fn is_any(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }

    fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

/// The words of `sql`, without comments. What is not closed reaches to the end.
pub fn tokens(sql: &str, dialect: Dialect) -> impl Iterator<Item = Token<'_>> {
    let mut position = 0;
    std::iter::from_fn(move || {
        position = skip_blanks(sql, position, dialect);
        let rest = &sql[position..];
        let (lexeme, length) = next_lexeme(rest, dialect)?;
        let token = Token { lexeme, text: &rest[..length], start: position };
        position += length;
        Some(token)
    })
}

fn skip_blanks(sql: &str, mut position: usize, dialect: Dialect) -> usize {
    loop {
        let rest = &sql[position..];
        let blank = rest.len() - rest.trim_start().len();
        let length = if blank > 0 {
            blank
        } else if rest.starts_with("--") {
            rest.find('\n').map_or(rest.len(), |end| end + 1)
        } else if rest.starts_with("/*") {
            comment_length(rest, dialect.has_nested_comments)
        } else {
            return position;
        };
        position += length;
    }
}

fn comment_length(rest: &str, is_nested: bool) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0u32, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" if depth == 0 || is_nested => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

fn next_lexeme(rest: &str, dialect: Dialect) -> Option<(Lexeme, usize)> {
    let first = rest.chars().next()?;
    let found = match first {
        '\'' => (Lexeme::String, quoted_length(rest, '\'', dialect.has_escapes)),
        '"' => (Lexeme::Name, quoted_length(rest, '"', false)),
        '$' => {
            let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
            if digits > 0 {
                (Lexeme::Parameter(rest[1..=digits].parse().unwrap_or(usize::MAX)), 1 + digits)
            } else if let Some(length) = dollar_length(rest).filter(|_| dialect.has_dollar_quotes) {
                (Lexeme::String, length)
            } else {
                (Lexeme::Symbol, 1)
            }
        }
        _ if is_in_word(first) => {
            let length = rest.find(|character| !is_in_word(character) && character != '$').unwrap_or(rest.len());
            let prefix = &rest[..length];
            // A string with a prefix: e'…' always has escapes, r'…' never.
            if rest[length..].starts_with('\'') && ["e", "r", "x", "b", "u&"].contains(&&*prefix.to_ascii_lowercase()) {
                let is_raw = prefix.eq_ignore_ascii_case("r");
                let has_escapes = prefix.eq_ignore_ascii_case("e") || dialect.has_escapes && !is_raw;
                (Lexeme::String, length + quoted_length(&rest[length..], '\'', has_escapes))
            } else {
                (Lexeme::Word, length)
            }
        }
        _ => (Lexeme::Symbol, first.len_utf8()),
    };
    Some(found)
}

fn is_in_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Of a text in quotes, which a doubled quote does not end.
fn quoted_length(rest: &str, quote: char, has_escapes: bool) -> usize {
    let mut characters = rest.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        if character == '\\' && has_escapes {
            characters.next();
        } else if character == quote {
            if characters.peek().is_some_and(|(_, next)| *next == quote) {
                characters.next();
            } else {
                return at + quote.len_utf8();
            }
        }
    }
    rest.len()
}

/// Of `$tag$ … $tag$`.
fn dollar_length(rest: &str) -> Option<usize> {
    let tag_end = rest[1..].find(|character| !is_in_word(character))? + 1;
    if !rest[tag_end..].starts_with('$') {
        return None;
    }
    let tag = &rest[..=tag_end];
    Some(rest[tag.len()..].find(tag).map_or(rest.len(), |end| end + 2 * tag.len()))
}

/// The statements of `sql`, which semicolons part, without blanks and comments around them and without those that are empty.
///
/// The engines' own extraction gives statements but not their texts, and the state of a transaction is in the text.
#[must_use]
pub fn split(sql: &str, dialect: Dialect) -> Vec<&str> {
    let mut statements = Vec::new();
    let mut current: Option<(usize, usize)> = None;
    let mut has_body = false;
    let mut words = 0;
    for token in tokens(sql, dialect) {
        if token.is(";") && !has_body {
            statements.extend(current.take().map(|(start, end)| &sql[start..end]));
            words = 0;
            continue;
        }
        if words == 0 {
            has_body = false;
        }
        // `create or replace procedure …`: the rest of the text is its body.
        if dialect.has_bodies && words < 4 && token.is_any(&["function", "procedure", "trigger"]) {
            let start = current.map_or(token.start, |(start, _)| start);
            has_body = sql[start..].get(..6).is_some_and(|word| word.eq_ignore_ascii_case("create"));
        }
        words += 1;
        current = Some((current.map_or(token.start, |(start, _)| start), token.end()));
    }
    statements.extend(current.map(|(start, end)| &sql[start..end]));
    statements
}

/// `sql` with a `?` in place of each `$n`, and the numbers in order, from 0.
#[must_use]
pub fn with_question_marks(sql: &str, dialect: Dialect) -> (String, Vec<usize>) {
    let mut text = String::with_capacity(sql.len());
    let mut numbers = Vec::new();
    let mut copied = 0;
    for token in tokens(sql, dialect) {
        if let Lexeme::Parameter(number) = token.lexeme {
            text.push_str(&sql[copied..token.start]);
            text.push('?');
            numbers.push(number.wrapping_sub(1));
            copied = token.end();
        }
    }
    text.push_str(&sql[copied..]);
    (text, numbers)
}

/// `COPY … FROM STDIN`, with what is to be known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyIn {
    /// The table's name in the client's own words: `s."t"`.
    pub table: String,
    /// The columns in the rows' order, in parentheses, in the client's own words; empty: all of them.
    pub columns: String,
    pub delimiter: char,
    pub quote: char,
    /// What stands for NULL, without quotes around it.
    pub null: String,
    pub has_header: bool,
}

/// What the server does with a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Begin,
    Commit,
    RollBack,
    /// Within a transaction: what a failed one may do beside ending.
    RollBackTo,
    CopyIn(CopyIn),
    /// The statement's name; None for all.
    Deallocate(Option<String>),
    DiscardAll,
    /// A setting of PostgreSQL's own clients, which has no meaning here.
    ClientSetting,
    ShowVersion,
    /// The engine's.
    Execute,
}

/// Settings that PostgreSQL's clients send on their own. What they ask for is so here, or is nothing that an engine has.
const CLIENT_SETTINGS: [&str; 9] = [
    "application_name",
    "bytea_output",
    "client_encoding",
    "client_min_messages",
    "datestyle",
    "extra_float_digits",
    "intervalstyle",
    "names",
    "standard_conforming_strings",
];

impl Action {
    /// What one statement asks for. An error: rows in a form that is not taken.
    pub fn of(sql: &str, dialect: Dialect) -> Result<Self, EngineError> {
        let words: Vec<Token<'_>> = tokens(sql, dialect).take(4).collect();
        let is = |index: usize, word: &str| words.get(index).is_some_and(|token| token.is(word));
        let Some(first) = words.first() else { return Ok(Self::Execute) };
        let action = if first.is("begin") || first.is("start") && is(1, "transaction") {
            Self::Begin
        } else if first.is("commit") || first.is("end") && (words.len() == 1 || is(1, "transaction") || is(1, "work")) {
            Self::Commit
        } else if first.is_any(&["rollback", "abort"]) {
            let is_partly = is(1, "to") || is(2, "to");
            if is_partly { Self::RollBackTo } else { Self::RollBack }
        } else if first.is("copy") {
            CopyIn::parse(sql, dialect)?.map_or(Self::Execute, Self::CopyIn)
        } else if first.is("deallocate") {
            let name = words.get(if is(1, "prepare") { 2 } else { 1 });
            let name = name.filter(|token| !token.is("all")).map(|token| token.text.trim_matches('"').to_owned());
            Self::Deallocate(name)
        } else if first.is("discard") && is(1, "all") {
            Self::DiscardAll
        } else if first.is("show") && is(1, "server_version") {
            Self::ShowVersion
        } else if first.is("set") {
            let name = words.get(if is(1, "session") || is(1, "local") { 2 } else { 1 });
            let is_client = name.is_some_and(|token| token.is_any(&CLIENT_SETTINGS));
            if is_client { Self::ClientSetting } else { Self::Execute }
        } else {
            Self::Execute
        };
        Ok(action)
    }
}

impl CopyIn {
    /// None if it is another COPY, which is the engine's.
    fn parse(sql: &str, dialect: Dialect) -> Result<Option<Self>, EngineError> {
        let words: Vec<Token<'_>> = tokens(sql, dialect).collect();
        let from = words.windows(2).position(|pair| pair[0].is("from") && pair[1].is("stdin"));
        let (Some(from), Some(first)) = (from.filter(|from| *from > 1), words.get(1)) else { return Ok(None) };
        let columns =
            words[..from].iter().position(|token| token.is("(")).filter(|columns| *columns > 1).unwrap_or(from);
        let mut copy = Self {
            table: sql[first.start..words[columns - 1].end()].to_owned(),
            columns: sql[words[columns - 1].end()..words[from - 1].end()].trim().to_owned(),
            delimiter: ',',
            quote: '"',
            null: String::new(),
            has_header: false,
        };
        let mut is_csv = false;
        let mut options = words[from + 2..].iter().filter(|token| !token.is_any(&["with", "(", ")", ",", "as"]));
        while let Some(option) = options.next() {
            let mut character = || {
                let text = options.next().and_then(|token| unquoted(token.text)).unwrap_or_default();
                let mut characters = text.chars();
                let first = characters.next().filter(|_| characters.as_str().is_empty());
                first.ok_or_else(|| refused(&format!("COPY's {} is not one character", option.text)))
            };
            if option.is("format") {
                is_csv = options.next().is_some_and(|token| token.is("csv"));
            } else if option.is("csv") {
                is_csv = true;
            } else if option.is("delimiter") {
                copy.delimiter = character()?;
            } else if option.is("quote") {
                copy.quote = character()?;
            } else if option.is("null") {
                copy.null = options.next().and_then(|token| unquoted(token.text)).unwrap_or_default();
            } else if option.is("header") {
                let next =
                    options.clone().next().filter(|token| token.is_any(&["true", "false", "on", "off", "1", "0"]));
                copy.has_header = next.is_none_or(|token| token.is_any(&["true", "on", "1"]));
                if next.is_some() {
                    options.next();
                }
            } else {
                return Err(refused(&format!("COPY's option {} is not taken", option.text)));
            }
        }
        if is_csv { Ok(Some(copy)) } else { Err(refused("COPY FROM STDIN takes only rows in FORMAT csv")) }
    }

    /// `text` as a string of SQL.
    #[must_use]
    pub fn quoted(text: &str) -> String {
        format!("'{}'", text.replace('\'', "''"))
    }
}

fn refused(message: &str) -> EngineError {
    EngineError::new("0A000", message)
}

/// The content of a string without prefix.
fn unquoted(text: &str) -> Option<String> {
    Some(text.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'"))
}

/// What may stand between `create` and the kind of thing that is created.
const NO_KIND: [&str; 7] = ["or", "replace", "unique", "temp", "temporary", "local", "global"];

/// The words that say what a statement was, for CommandComplete: `INSERT 0 3`, `CREATE TABLE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verb(String);

impl Verb {
    /// The verb of one statement: behind `with` and its queries, and of two words for definitions.
    #[must_use]
    pub fn of(sql: &str, dialect: Dialect) -> Self {
        let mut depth = 0i32;
        let mut verb = String::new();
        for token in tokens(sql, dialect) {
            match token.text {
                "(" => depth += 1,
                ")" => depth -= 1,
                _ => {}
            }
            if depth > 0 || token.lexeme != Lexeme::Word {
                continue;
            }
            let word = token.text.to_ascii_uppercase();
            match &*verb {
                "" => verb = word,
                "WITH" if token.is_any(&["select", "insert", "update", "delete", "merge", "values"]) => verb = word,
                "WITH" => continue,
                "CREATE" | "DROP" | "ALTER" if !token.is_any(&NO_KIND) => verb = format!("{verb} {word}"),
                _ => {}
            }
            if !matches!(&*verb, "WITH" | "CREATE" | "DROP" | "ALTER") {
                break;
            }
        }
        Self(verb)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// CommandComplete's tag, as PostgreSQL forms it. `rows`: how many the answer had.
    #[must_use]
    pub fn tag(&self, done: Done, rows: u64) -> String {
        let count = match done {
            Done::Rows => rows,
            Done::Changed(count) => count,
            Done::Nothing => 0,
        };
        match (&*self.0, done) {
            ("INSERT", _) => format!("INSERT 0 {count}"),
            ("UPDATE" | "DELETE" | "MERGE" | "COPY", _) => format!("{} {count}", self.0),
            ("" | "SELECT" | "WITH" | "VALUES" | "FROM" | "TABLE", _) => format!("SELECT {count}"),
            ("TRUNCATE", _) => "TRUNCATE TABLE".to_owned(),
            (verb, _) => verb.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DUCK: Dialect =
        Dialect { has_escapes: false, has_nested_comments: true, has_dollar_quotes: true, has_bodies: false };
    const MONET: Dialect =
        Dialect { has_escapes: true, has_nested_comments: false, has_dollar_quotes: false, has_bodies: true };

    #[test]
    fn semicolons_part_statements_only_outside_of_texts() {
        let sql = "select ';', \"a;b\" -- ;\n; /* ; /* ; */ ; */ ;; select $q$ ; $q$, e'\\';' ; ";
        assert_eq!(split(sql, DUCK), ["select ';', \"a;b\"", "select $q$ ; $q$, e'\\';'"]);
        assert_eq!(
            split("select '\\';'; select r'\\'; select 3", MONET),
            ["select '\\';'", "select r'\\'", "select 3"]
        );
        assert_eq!(split("select 1; create procedure p() begin a; b; end; x", MONET).len(), 2);
        assert_eq!(split("drop procedure p; select 1", MONET).len(), 2);
        assert!(split(" ; -- nothing\n", DUCK).is_empty());
    }

    #[test]
    fn parameters_become_question_marks_where_they_are_parameters() {
        let (text, numbers) = with_question_marks("select $2, '$1', a$1, $1 -- $3", MONET);
        assert_eq!((&*text, &*numbers), ("select ?, '$1', a$1, ? -- $3", &[1, 0][..]));
    }

    #[test]
    fn what_the_server_understands_itself() {
        let action = |sql| Action::of(sql, DUCK).unwrap();
        assert_eq!(action("BEGIN isolation level serializable"), Action::Begin);
        assert_eq!(action("start transaction"), Action::Begin);
        assert_eq!(action("end"), Action::Commit);
        assert_eq!(action("ROLLBACK work"), Action::RollBack);
        assert_eq!(action("rollback to savepoint a"), Action::RollBackTo);
        assert_eq!(action("deallocate prepare \"s\""), Action::Deallocate(Some("s".into())));
        assert_eq!(action("DEALLOCATE ALL"), Action::Deallocate(None));
        assert_eq!(action("discard all"), Action::DiscardAll);
        assert_eq!(action("set extra_float_digits = 3"), Action::ClientSetting);
        assert_eq!(action("set threads = 3"), Action::Execute);
        assert_eq!(action("show server_version"), Action::ShowVersion);
        assert_eq!(action("copy t to 'x'"), Action::Execute);
    }

    #[test]
    fn copy_is_read_with_its_options() {
        let sql = "COPY s.\"t\" (a, b) FROM STDIN (FORMAT csv, DELIMITER '|', HEADER false, NULL '')";
        let Action::CopyIn(copy) = Action::of(sql, DUCK).unwrap() else { panic!("no COPY") };
        assert_eq!((&*copy.table, &*copy.columns, copy.delimiter, copy.quote), ("s.\"t\"", "(a, b)", '|', '"'));
        let Action::CopyIn(copy) = Action::of("copy t from stdin with csv header null 'N'", DUCK).unwrap() else {
            panic!("no COPY")
        };
        assert_eq!((&*copy.table, &*copy.columns, copy.has_header, &*copy.null), ("t", "", true, "N"));
        for refused in
            ["copy t from stdin", "copy t from stdin (format binary)", "copy t from stdin (format csv, force_null)"]
        {
            assert_eq!(Action::of(refused, DUCK).unwrap_err().sqlstate, "0A000", "{refused}");
        }
    }

    #[test]
    fn tags_are_formed_as_postgresql_does() {
        let tag = |sql, done| Verb::of(sql, DUCK).tag(done, 5);
        assert_eq!(tag("select 1", Done::Rows), "SELECT 5");
        assert_eq!(tag("with a as (select 1) insert into t select * from a", Done::Changed(2)), "INSERT 0 2");
        assert_eq!(tag("insert into t values (1) returning a", Done::Rows), "INSERT 0 5");
        assert_eq!(tag("update t set a = 1", Done::Changed(3)), "UPDATE 3");
        assert_eq!(tag("create or replace table t (a int)", Done::Nothing), "CREATE TABLE");
        assert_eq!(tag("create unique index i on t (a)", Done::Nothing), "CREATE INDEX");
        assert_eq!(tag("drop table t", Done::Changed(7)), "DROP TABLE");
        assert_eq!(tag("set threads = 1", Done::Nothing), "SET");
        assert_eq!(tag("/* x */ checkpoint", Done::Nothing), "CHECKPOINT");
        assert_eq!(tag("explain select 1", Done::Rows), "EXPLAIN");
        assert_eq!(tag("(select 1)", Done::Rows), "SELECT 5");
        assert_eq!(tag("truncate t", Done::Changed(3)), "TRUNCATE TABLE");
    }

    proptest! {
        #[test]
        fn any_text_is_cut_without_a_panic(sql in "[ -~äö$'\"\\\\/*;\n-]{0,60}") {
            for dialect in [DUCK, MONET] {
                let end = tokens(&sql, dialect).fold(0, |end, token| {
                    assert!(token.start >= end);
                    token.end()
                });
                prop_assert!(end <= sql.len());
                let _ = (split(&sql, dialect), with_question_marks(&sql, dialect), Verb::of(&sql, dialect));
                let _ = Action::of(&sql, dialect);
            }
        }
    }
}
