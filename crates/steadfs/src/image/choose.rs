//! Chooses a partition by what a user calls it.

use super::{Partition, Table};

impl Table {
    /// The partition with this number, or else with this name in the table, or else with a volume of this label, or
    /// else with this name in a slot.
    ///
    /// # Errors
    /// Why there is no such partition, or not only one: what follows the name of the disk in a message.
    pub fn choose(&self, which: &str) -> Result<&Partition, String> {
        let by_number = |part: &&Partition| which.parse() == Ok(part.number);
        if let Some(found) = self.partitions.iter().find(by_number) {
            return Ok(found);
        }
        // Most partitions have no name or label: an empty one chooses none.
        let is = |name: &str| !which.is_empty() && name == which;
        let by_name = self.partitions.iter().filter(|part| is(&part.name));
        let by_label = self.partitions.iter().filter(|part| is(&part.label));
        let mut found: Vec<&Partition> = by_name.collect();
        if found.is_empty() {
            found.extend(by_label);
        }
        if found.is_empty() {
            found.extend(self.of_a_slot(which));
        }
        match &found[..] {
            [] => Err(format!("has no partition {which:?}: it {self}")),
            [one] => Ok(one),
            several => {
                let numbers = several.iter().map(|part| part.number.to_string());
                let numbers: Vec<String> = numbers.collect();
                let numbers = numbers.join(", ");
                Err(format!(
                    "has several partitions {which:?} ({numbers}): give the number"
                ))
            }
        }
    }

    /// The logical partitions of this name in a slot (`_a`, `_b`); those without content are left out.
    fn of_a_slot(&self, which: &str) -> Vec<&Partition> {
        let is_of = |part: &&Partition| {
            let suffix = part.name.strip_prefix(which);
            part.map.is_some() && part.bytes > 0 && matches!(suffix, Some("_a" | "_b"))
        };
        self.partitions.iter().filter(is_of).collect()
    }
}
