//! The bodies of a client's messages. Every length in them is checked; what does not fit is a violation of the protocol.

use crate::engine::{EngineError, Value, oid};

/// Takes a message's body apart.
pub struct Body<'a>(&'a [u8]);

type Read<T> = Result<T, EngineError>;

/// What breaks the protocol.
#[must_use]
pub fn violation(message: &str) -> EngineError {
    EngineError::new("08P01", message)
}

impl<'a> Body<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn bytes(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| violation("a message ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Read<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub fn u16(&mut self) -> Read<u16> {
        Ok(u16::from_be_bytes(self.bytes(2)?.try_into().unwrap_or_default()))
    }

    pub fn i32(&mut self) -> Read<i32> {
        Ok(i32::from_be_bytes(self.bytes(4)?.try_into().unwrap_or_default()))
    }

    pub fn u32(&mut self) -> Read<u32> {
        Ok(u32::from_be_bytes(self.bytes(4)?.try_into().unwrap_or_default()))
    }

    /// Text up to a NUL, which must be UTF-8.
    pub fn text(&mut self) -> Read<&'a str> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or_else(|| violation("a text without its end"))?;
        let text = utf8(&self.0[..end])?;
        self.0 = &self.0[end + 1..];
        Ok(text)
    }

    pub fn end(&self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err(violation("a message is longer than what is in it")) }
    }
}

fn utf8(bytes: &[u8]) -> Read<&str> {
    std::str::from_utf8(bytes).map_err(|_| EngineError::new("22021", "a text that is not UTF-8"))
}

/// Parse.
pub struct Parse<'a> {
    pub name: &'a str,
    pub sql: &'a str,
    /// The types of the first parameters; 0 where the client leaves one open.
    pub types: Vec<u32>,
}

impl<'a> Parse<'a> {
    pub fn read(body: &'a [u8]) -> Read<Self> {
        let mut body = Body::new(body);
        let (name, sql) = (body.text()?, body.text()?);
        let types = (0..body.u16()?).map(|_| body.u32()).collect::<Read<_>>()?;
        body.end()?;
        Ok(Self { name, sql, types })
    }
}

/// Bind.
pub struct Bind<'a> {
    pub portal: &'a str,
    pub statement: &'a str,
    formats: Vec<u16>,
    values: Vec<Option<&'a [u8]>>,
    /// Whether each result is asked for in binary form.
    pub wants_binary: bool,
}

impl<'a> Bind<'a> {
    pub fn read(body: &'a [u8]) -> Read<Self> {
        let mut body = Body::new(body);
        let (portal, statement) = (body.text()?, body.text()?);
        let formats = (0..body.u16()?).map(|_| body.u16()).collect::<Read<Vec<u16>>>()?;
        let mut values = Vec::new();
        for _ in 0..body.u16()? {
            let length = body.u32()?;
            values.push(if length == u32::MAX { None } else { Some(body.bytes(length as usize)?) });
        }
        let mut wants_binary = false;
        for _ in 0..body.u16()? {
            wants_binary |= body.u16()? == 1;
        }
        body.end()?;
        Ok(Self { portal, statement, formats, values, wants_binary })
    }

    /// The values of parameters that have these types.
    pub fn values(&self, types: &[u32]) -> Read<Vec<Value>> {
        if self.values.len() != types.len() {
            let text = format!("{} values for {} parameters", self.values.len(), types.len());
            return Err(violation(&text));
        }
        let format_of = |index: usize| match self.formats.len() {
            0 => 0,
            1 => self.formats[0],
            _ => self.formats.get(index).copied().unwrap_or_default(),
        };
        let pairs = self.values.iter().zip(types).enumerate();
        pairs.map(|(index, (bytes, kind))| value(*bytes, *kind, format_of(index) == 1)).collect()
    }
}

fn value(bytes: Option<&[u8]>, kind: u32, is_binary: bool) -> Read<Value> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    if !is_binary || matches!(kind, oid::TEXT | oid::VARCHAR | oid::BPCHAR) {
        return Ok(Value::Text(utf8(bytes)?.to_owned()));
    }
    let wrong = || EngineError::new("22P03", format!("a binary value of {} bytes for type {kind}", bytes.len()));
    let value = match kind {
        oid::INT2 => Value::Int(i64::from(i16::from_be_bytes(bytes.try_into().map_err(|_| wrong())?))),
        oid::INT4 => Value::Int(i64::from(i32::from_be_bytes(bytes.try_into().map_err(|_| wrong())?))),
        oid::INT8 => Value::Int(i64::from_be_bytes(bytes.try_into().map_err(|_| wrong())?)),
        oid::FLOAT8 => Value::Float(f64::from_be_bytes(bytes.try_into().map_err(|_| wrong())?)),
        _ => return Err(EngineError::new("0A000", format!("a parameter of type {kind} is taken as text only"))),
    };
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bind_has_integers_in_binary_form_and_the_rest_as_text() {
        let body = b"\0s7\0\0\x03\0\x01\0\0\0\0\0\x03\0\0\0\x04\0\0\x01\x02\0\0\0\x05-1.05\xff\xff\xff\xff\0\0";
        let bind = Bind::read(body).unwrap();
        assert_eq!((bind.portal, bind.statement, bind.wants_binary), ("", "s7", false));
        let values = bind.values(&[oid::INT4, oid::NUMERIC, oid::TEXT]).unwrap();
        assert_eq!(values, [Value::Int(258), Value::Text("-1.05".into()), Value::Null]);
        assert_eq!(bind.values(&[oid::INT4]).unwrap_err().sqlstate, "08P01");
        assert_eq!(bind.values(&[oid::INT8, oid::NUMERIC, oid::TEXT]).unwrap_err().sqlstate, "22P03");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(bind) = Bind::read(&bytes) {
                let _ = bind.values(&[oid::INT4, oid::TEXT]);
            }
            let _ = Parse::read(&bytes);
        }
    }
}
