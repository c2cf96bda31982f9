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
}

const PARAMETERS: [&str; 5] = ["wire", "address", "user", "password", "database"];

impl Server {
    /// Takes the server out of a method's parameters; what is left is the method's own.
    pub fn take(params: &mut Value) -> Result<Self, Failure> {
        let mut own = Map::new();
        if let Some(params) = params.as_object_mut() {
            own.extend(PARAMETERS.iter().filter_map(|name| params.remove_entry(*name)));
        }
        method::parse(Value::Object(own))
    }

    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.wire
    }

    /// `options`: server settings of the session.
    #[must_use]
    pub fn login(self, options: Vec<(String, String)>) -> (Address, Login) {
        let Self { address, user, password, database, .. } = self;
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
