//! Reads a table: lookup of an address, and iteration.

use std::net::IpAddr;

use ipnet::IpNet;
use maxminddb::{MaxMindDbError, Reader, WithinOptions};
use serde::Deserialize;

use super::{DatabaseType, Description, DescriptionError, LANGUAGE};

/// A table in memory: a `Vec`, a `Bytes`, a borrowed slice.
pub struct Database<S: AsRef<[u8]>> {
    reader: Reader<S>,
    database_type: DatabaseType,
    description: Description,
}

#[derive(Debug, thiserror::Error)]
pub enum MmdbReadError {
    #[error(transparent)]
    Format(#[from] MaxMindDbError),
    #[error("wrong database type: expected \"Workload-Identity\" or \"Workload-Identity-Numbers\", got {0:?}")]
    OtherType(String),
    #[error(transparent)]
    Description(#[from] DescriptionError),
    #[error("invalid prefix length of {0}")]
    PrefixLength(String),
}

impl<S: AsRef<[u8]>> Database<S> {
    /// # Errors
    /// If it is not a table of identities with a position.
    pub fn open(bytes: S) -> Result<Database<S>, MmdbReadError> {
        let reader = Reader::from_source(bytes)?;
        let metadata = reader.metadata();
        let known = DatabaseType::ALL.into_iter().find(|known| known.text() == metadata.database_type);
        let database_type = known.ok_or_else(|| MmdbReadError::OtherType(metadata.database_type.clone()))?;
        let description = metadata.description.get(LANGUAGE).map_or("", String::as_str).parse()?;
        Ok(Database { reader, database_type, description })
    }

    pub fn database_type(&self) -> DatabaseType {
        self.database_type
    }

    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The record of an address, which may be IPv4-mapped as in an IPv6 socket.
    ///
    /// # Errors
    /// If the file is damaged there, or the record is not a `T`.
    pub fn lookup<'d, T: Deserialize<'d>>(&'d self, address: IpAddr) -> Result<Option<T>, MmdbReadError> {
        Ok(self.reader.lookup(address.to_canonical())?.decode()?)
    }

    /// Every entry with its record, in order, IPv4 first: an address is a network of one. A record of a wider network
    /// is returned in many pieces, between the addresses.
    ///
    /// # Errors
    /// As for a single lookup, per entry.
    pub fn entries<'d, T: Deserialize<'d>>(
        &'d self,
    ) -> Result<impl Iterator<Item = Result<(IpNet, T), MmdbReadError>>, MmdbReadError> {
        let found = self.reader.networks(WithinOptions::default())?;
        Ok(found.filter_map(|entry| {
            let read = || {
                let entry = entry?;
                let found = entry.network()?;
                let network = IpNet::new(found.ip(), found.prefix());
                let network = network.map_err(|_| MmdbReadError::PrefixLength(found.to_string()))?;
                Ok(entry.decode()?.map(|record| (network, record)))
            };
            read().transpose()
        }))
    }

    /// Verifies that the whole file is readable.
    ///
    /// # Errors
    /// The first defect.
    pub fn verify(&self) -> Result<(), MmdbReadError> {
        Ok(self.reader.verify()?)
    }
}
