//! The parameters by which methods name a server, and how they are told to give up.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::method;
use crate::stream::StreamHandle;
use crate::wire::Dialect;
use crate::wire::blocking::{Address, Interrupter};
use crate::wire::postgres::Login;

/// A server, and as whom to enter it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    wire: Dialect,
    pub address: Address,
    user: String,
    #[serde(default)]
    password: Option<String>,
    database: String,
    /// In which names without a schema are; None: the database's own default.
    #[serde(default)]
    schema: Option<String>,
}

const PARAMETERS: [&str; 6] = ["wire", "address", "user", "password", "database", "schema"];

impl Server {
    /// Takes the server out of a method's parameters; what is left is the method's own.
    pub fn take(params: &mut Value) -> Result<Self, Failure> {
        let mut own = Map::new();
        if let Some(params) = params.as_object_mut() {
            own.extend(PARAMETERS.iter().filter_map(|name| params.remove_entry(*name)));
        }
        let server: Self = method::parse(Value::Object(own))?;
        if server.schema.is_some() && server.wire != Dialect::Postgres {
            return Err(Failure::bad_request("a schema: servers of the wire postgres alone have it"));
        }
        Ok(server)
    }

    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.wire
    }

    /// `options`: server settings of the session. The schema is one of them, so that every connection begins with it.
    #[must_use]
    pub fn login(self, mut options: Vec<(String, String)>) -> (Address, Login) {
        let Self { wire: _, address, user, password, database, schema } = self;
        options.extend(schema.map(|name| ("search_path".to_owned(), format!("\"{}\"", name.replace('"', "\"\"")))));
        (address, Login { user, password, database, options })
    }
}

/// What ends all talk with the server when the stream is cancelled.
#[must_use]
pub fn interrupter_of(stream: &StreamHandle) -> Interrupter {
    let interrupter = Interrupter::default();
    let on_cancel = interrupter.clone();
    stream.on_cancel(move || on_cancel.interrupt());
    interrupter
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(wire: &str, schema: Value) -> Result<Server, Failure> {
        let mut params = json!({"wire": wire, "address": {"unix": "/s"}, "user": "u", "database": "d", "schema": schema, "scale": 1});
        let server = Server::take(&mut params)?;
        assert_eq!(params, json!({"scale": 1}));
        Ok(server)
    }

    #[test]
    fn a_schema_is_a_setting_that_each_connection_begins_with() {
        let own = vec![("jit".to_owned(), "off".to_owned())];
        let options = |schema: Value| taken("postgres", schema).unwrap().login(own.clone()).1.options;
        assert_eq!(options(Value::Null), own);
        let path = |name: &str| ("search_path".to_owned(), name.to_owned());
        assert_eq!(options(json!("unit_1")), [own[0].clone(), path("\"unit_1\"")]);
        assert_eq!(options(json!("a\"b")), [own[0].clone(), path("\"a\"\"b\"")]);
    }

    #[test]
    fn a_schema_is_refused_where_a_connection_cannot_begin_with_it() {
        for wire in ["mysql", "standard"] {
            assert!(taken(wire, Value::Null).is_ok());
            assert!(taken(wire, json!("unit_1")).is_err_and(|failure| failure.message.contains("wire postgres")));
        }
    }
}
