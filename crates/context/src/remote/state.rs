//! State files of other clusters, which a restarted provider reads while the clusters are unreachable.
//!
//! Each cluster has one file, which is written to a temporary file and renamed. It contains a hash of its content, so
//! that a truncated or altered file is rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use policy::ObjectName;
use policy::remote::LabelPrefix;
use serde::{Deserialize, Serialize};

use super::offers::Claim;

/// Size limit of a file: ten times the size of a file with tens of thousands of sets.
const FILE_BYTES: u64 = 256 << 20;

/// The saved state of a cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Memory {
    /// Time of the last sync.
    pub synced_at: Option<Timestamp>,
    pub claims: BTreeMap<LabelPrefix, Vec<Claim>>,
}

/// The folder of state files.
#[derive(Debug, Clone)]
pub struct StateDir(PathBuf);

/// Result of reading a state file.
#[derive(Debug, PartialEq)]
pub enum StoredMemory {
    Nothing,
    Memory(Memory),
    /// An invalid file, and the path that it was renamed to.
    Damaged {
        reason: String,
        aside: Option<PathBuf>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StateFile {
    sha256: feed::Digest,
    state: State,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct State {
    format: u32,
    cluster: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    synced_at: Option<String>,
    /// The sets by label prefix.
    families: BTreeMap<String, Vec<Set>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Set {
    namespace: Arc<str>,
    name: Arc<str>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    host_network: bool,
    addresses: Vec<IpAddr>,
}

const FORMAT: u32 = 1;

impl StateDir {
    /// The subfolder of state files, created if missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(folder: &Path) -> io::Result<StateDir> {
        let folder = folder.join("remote-sets");
        fs::create_dir_all(&folder)?;
        Ok(StateDir(folder))
    }

    /// Reads the state file of the cluster. A damaged file is renamed.
    ///
    /// # Errors
    /// If a file exists and cannot be read.
    pub fn read(&self, cluster: &str) -> io::Result<StoredMemory> {
        let path = self.path(cluster);
        let bytes = match fs::metadata(&path).map(|metadata| metadata.len()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(StoredMemory::Nothing),
            Err(e) => return Err(e),
            Ok(length) if length > FILE_BYTES => Err(format!("the file is larger than {FILE_BYTES} bytes")),
            Ok(_) => Ok(fs::read(&path)?),
        };
        Ok(match bytes.and_then(|bytes| decode(cluster, &bytes)) {
            Ok(memory) => StoredMemory::Memory(memory),
            Err(reason) => {
                let aside = path.with_extension("json.damaged");
                let moved = fs::rename(&path, &aside);
                StoredMemory::Damaged { reason, aside: moved.is_ok().then_some(aside) }
            }
        })
    }

    /// Replaces the state file.
    ///
    /// # Errors
    /// If it cannot be written. The previous file is kept.
    pub fn write(&self, cluster: &str, memory: &Memory) -> io::Result<()> {
        let path = self.path(cluster);
        let beside = path.with_extension("json.new");
        let mut file = File::create(&beside)?;
        file.write_all(&encode(cluster, memory))?;
        file.sync_all()?;
        fs::rename(&beside, &path)?;
        File::open(&self.0)?.sync_all()
    }

    /// Removes the state files of all clusters but these; returns the names of the removed ones.
    ///
    /// # Errors
    /// If the folder cannot be read, or a file cannot be removed.
    pub fn keep_only(&self, clusters: &BTreeSet<&str>) -> io::Result<Vec<String>> {
        let mut removed = vec![];
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let Some(cluster) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            if !clusters.contains(cluster) {
                fs::remove_file(self.path(cluster))?;
                removed.push(cluster.to_owned());
            }
        }
        Ok(removed)
    }

    /// The path is safe: `config` accepts only RFC 1123 labels as names of clusters.
    fn path(&self, cluster: &str) -> PathBuf {
        self.0.join(format!("{cluster}.json"))
    }
}

fn encode(cluster: &str, memory: &Memory) -> Vec<u8> {
    let set = |claim: &Claim| Set {
        namespace: claim.set.namespace.clone(),
        name: claim.set.name.clone(),
        host_network: claim.host_network,
        addresses: claim.addresses.clone(),
    };
    let families = memory.claims.iter().map(|(prefix, claims)| (prefix.to_string(), claims.iter().map(set).collect()));
    let state = State {
        format: FORMAT,
        cluster: cluster.to_owned(),
        synced_at: memory.synced_at.map(|at| at.to_string()),
        families: families.collect(),
    };
    json(&StateFile { sha256: feed::Digest::of(&json(&state)), state })
}

fn decode(cluster: &str, bytes: &[u8]) -> Result<Memory, String> {
    let StateFile { sha256, state } = serde_json::from_slice(bytes).map_err(|e| format!("invalid state file: {e}"))?;
    if feed::Digest::of(&json(&state)) != sha256 {
        return Err("SHA-256 mismatch".into());
    }
    let State { format, cluster: of, synced_at, families } = state;
    if format != FORMAT {
        return Err(format!("unsupported format {format}: expected {FORMAT}"));
    }
    if of != cluster {
        return Err(format!("cluster mismatch: expected '{cluster}', got '{of}'"));
    }
    let claim = |Set { namespace, name, host_network, addresses }| Claim {
        set: ObjectName { namespace, name },
        addresses,
        host_network,
    };
    let family = |(prefix, sets): (String, Vec<Set>)| {
        let prefix: LabelPrefix = prefix.parse().map_err(|e: policy::remote::NotALabelPrefix| e.to_string())?;
        Ok((prefix, sets.into_iter().map(claim).collect()))
    };
    let claims: Result<BTreeMap<LabelPrefix, Vec<Claim>>, String> = families.into_iter().map(family).collect();
    let synced_at = synced_at.map(|text| text.parse()).transpose().map_err(|e| format!("syncedAt: {e}"))?;
    Ok(Memory { synced_at, claims: claims? })
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    match serde_json::to_vec(value) {
        Ok(json) => json,
        Err(e) => unreachable!("strings and numbers are serializable: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let claim = |name: &str, address: &str, host_network| Claim {
            set: ObjectName::new("shop", name),
            addresses: vec![address.parse().unwrap()],
            host_network,
        };
        let claims = vec![claim("web", "10.4.1.38", false), claim("web", "2001:db8::1", true)];
        let synced_at = Some("2026-01-02T03:04:05.678Z".parse().unwrap());
        Memory { synced_at, claims: BTreeMap::from([("example.com".parse().unwrap(), claims)]) }
    }

    #[test]
    fn state_file_round_trips_per_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::create(folder.path()).unwrap();
        assert_eq!(state.read("east").unwrap(), StoredMemory::Nothing);
        state.write("east", &Memory::default()).unwrap();
        state.write("east", &memory()).unwrap();
        assert_eq!(state.read("east").unwrap(), StoredMemory::Memory(memory()));
        assert_eq!(state.read("west").unwrap(), StoredMemory::Nothing);
    }

    #[test]
    fn invalid_state_file_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::create(folder.path()).unwrap();
        let path = folder.path().join("remote-sets/east.json");
        let whole = encode("east", &memory());
        let altered = String::from_utf8(whole.clone()).unwrap().replace("10.4.1.38", "10.4.1.39").into_bytes();
        for bytes in [&whole[..whole.len() / 2], b"", b"{}", &altered, &encode("west", &memory())] {
            fs::write(&path, bytes).unwrap();
            let StoredMemory::Damaged { aside: Some(aside), .. } = state.read("east").unwrap() else {
                panic!("{bytes:?}")
            };
            assert_eq!(fs::read(aside).unwrap(), bytes);
            assert_eq!(state.read("east").unwrap(), StoredMemory::Nothing);
        }
    }

    #[test]
    fn state_is_removed_with_its_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::create(folder.path()).unwrap();
        for cluster in ["east", "west"] {
            state.write(cluster, &memory()).unwrap();
        }
        assert_eq!(state.keep_only(&BTreeSet::from(["west", "north"])).unwrap(), ["east"]);
        assert_eq!(state.read("east").unwrap(), StoredMemory::Nothing);
        assert_eq!(state.read("west").unwrap(), StoredMemory::Memory(memory()));
    }
}
