//! Shards of an owner whose records leave while they still fill, as the owner of the product does
//! it (decision 0093).

use std::sync::Arc;
use std::time::Duration;

use archipelago_base::SeqNo;
use archipelago_engine::memtable::ImageHead;
use archipelago_fabric::Batch;
use archipelago_offload::wire::shard::{ShardMessage, ShardName};

use super::model::{Contents, ShardState};
use super::owner::{Ended, Granted, Layout, Owner, Way, rotated, text};

impl Owner {
    /// Writes the first records of a shard ahead. Then the shard is registered, its grant is given
    /// back, or it is forgotten, as if the owner had lost it.
    pub(super) async fn send_ahead(&mut self, way: &Way) -> Result<(), Ended> {
        let Some(contents) = self.make(way) else { return Ok(()) };
        let (name, image_bytes) = (contents.name, contents.image.len() as u64);
        let bytes = image_bytes + self.rng.u64(..1024);
        let Some(granted) = self.land(way, name, bytes).await? else { return Ok(()) };
        let at = ImageHead::records_at(&contents.image, image_bytes).map_err(text)?;
        let records_at = at as usize;
        let written = self.write_records(way, &contents, granted, records_at).await?;
        self.check_unread(way, name).await?;
        self.book.lock().counted.ahead += 1;
        match self.rng.u32(..6) {
            0 => {
                way.change(|database| database.shards.remove(&name));
                Ok(())
            }
            1 | 2 => self.give_back(way, &contents, granted).await,
            _ => self.register(way, &contents, granted, Layout { records_at, written }).await,
        }
    }

    /// Writes some of the first records, one part after another with pauses. Returns their bytes.
    async fn write_records(
        &mut self,
        way: &Way,
        contents: &Contents,
        granted: Granted,
        records_at: usize,
    ) -> Result<usize, Ended> {
        let bytes = rotated(&contents.image, records_at);
        let most = bytes.len() - records_at;
        let (end, mut written) = (self.rng.usize(1..=most), 0);
        while written < end {
            let next = self.rng.usize(written + 1..=end);
            let write = |batch: &mut Batch, zone| {
                batch.write(zone, granted.at + written as u64, &bytes[written..next]);
            };
            way.post(&granted.key, write).await?;
            written = next;
            let pause = Duration::from_micros(self.rng.u64(..400));
            way.scheduler.sleep(pause).await;
        }
        Ok(written)
    }

    /// A search of a shard that is not registered must be refused.
    async fn check_unread(&self, way: &Way, name: ShardName) -> Result<(), Ended> {
        let get = ShardMessage::Get {
            owner: self.owner,
            shards: vec![name],
            key: super::model::key_of(0).into(),
            floor: SeqNo::ZERO,
            snapshot: SeqNo::MAX,
            inline_max: 64,
            wants_place: false,
        };
        let answer = way.ask(&get, 4096).await?;
        if !matches!(answer, ShardMessage::Refused { .. }) {
            way.violation(&format!("active shard {name} was read: {answer:?}"));
        }
        Ok(())
    }

    /// Gives a grant back. The shard may then be sent as a whole.
    async fn give_back(
        &mut self,
        way: &Way,
        contents: &Arc<Contents>,
        granted: Granted,
    ) -> Result<(), Ended> {
        let (owner, shard, grant) = (self.owner, contents.name, granted.number);
        let message = ShardMessage::GiveBack { owner, shard, grant };
        let answer = way.ask(&message, 256).await?;
        self.remember(message, shard, None);
        if !matches!(answer, ShardMessage::Done { .. }) {
            way.change(|database| database.set(shard, ShardState::Leaving));
            return Ok(());
        }
        self.book.lock().counted.given_back += 1;
        let bytes = contents.image.len() as u64;
        let Some(granted) = self.land(way, shard, bytes).await? else { return Ok(()) };
        let layout = Layout { records_at: 0, written: 0 };
        self.register(way, contents, granted, layout).await
    }
}
