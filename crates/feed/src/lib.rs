//! Baselines and deltas: how a table that lives in one process is published, and followed by others.
//!
//! A publication has an epoch, which is one life of its producer, and numbers its deltas from 1 without gaps. Every
//! baseline says which of them it contains. A follower's table is a baseline and the deltas behind it; where that
//! cannot be had, it pulls the baseline again. What the table is about is not known here.
