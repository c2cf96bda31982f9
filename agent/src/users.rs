//! Users by name, from `/etc/passwd` and `/etc/group` alone: a static binary has no name service, and in a new root the
//! host's would be the wrong one.

use crate::failure::{Code, Failure};
use crate::small_text;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// A name, or `uid:gid`, in the root directory of this process.
pub fn look_up(user: &str) -> Result<Ids, Failure> {
    if let Some((uid, gid)) = user.split_once(':') {
        return match (number(uid), number(gid)) {
            (Some(uid), Some(gid)) => Ok(Ids { uid, gid, groups: Vec::new() }),
            _ => Err(Failure::bad_request(format!("user {user:?} is neither a name nor uid:gid"))),
        };
    }
    let passwd = small_text("/etc/passwd").map_err(|error| Failure::io("open /etc/passwd", error))?;
    let group = small_text("/etc/group").unwrap_or_default();
    find(user, &passwd, &group).ok_or_else(|| Failure::new(Code::NotFound, format!("no user {user:?} in /etc/passwd")))
}

/// The highest number means "as it is" to setresuid(2) and chown(2): a program of that user would stay root.
fn number(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|number| *number != u32::MAX)
}

pub(crate) fn find(user: &str, passwd: &str, group: &str) -> Option<Ids> {
    let (uid, gid) = passwd.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        (fields[0] == user).then(|| Some((number(fields.get(2)?)?, number(fields.get(3)?)?)))?
    })?;
    let groups = group.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        fields.get(3)?.split(',').any(|member| member == user).then(|| number(fields[2]))?
    });
    Some(Ids { uid, gid, groups: groups.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\npostgres:x:101:104::/var/lib/postgresql:/bin/bash\n";
    const GROUP: &str = "root:x:0:\nssl-cert:x:103:postgres,other\npostgres:x:104:\nx:x:bad:postgres\n";

    #[test]
    fn finds_ids_and_supplementary_groups() {
        assert_eq!(find("postgres", PASSWD, GROUP), Some(Ids { uid: 101, gid: 104, groups: vec![103] }));
        assert_eq!(find("nobody", PASSWD, GROUP), None);
        assert_eq!(find("broken", PASSWD, GROUP), None);
        assert_eq!(look_up("7:8").unwrap(), Ids { uid: 7, gid: 8, groups: vec![] });
        for refused in ["7:", "4294967295:8", "7:4294967295", "-1:-1"] {
            assert_eq!(look_up(refused).unwrap_err().code, Code::BadRequest, "{refused}");
        }
        assert_eq!(find("a", "a:x:4294967295:0::/:/bin/sh\n", ""), None);
    }
}
