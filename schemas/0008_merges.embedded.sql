-- An embedded store is open for a second or two at a time. A merge that takes longer is cut off and begun again the
-- next time, for ever: parts above 64 MiB are left as they are.
ALTER TABLE spans MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 67108864;
ALTER TABLE crossings MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 67108864;
ALTER TABLE contents MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 67108864;
ALTER TABLE runs MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 67108864;
ALTER TABLE readings MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 67108864;

-- Small parts, though, are merged soon: each has to be asked for a run.
ALTER TABLE spans MODIFY SETTING min_age_to_force_merge_seconds = 60;
ALTER TABLE crossings MODIFY SETTING min_age_to_force_merge_seconds = 60;
ALTER TABLE contents MODIFY SETTING min_age_to_force_merge_seconds = 60;
ALTER TABLE runs MODIFY SETTING min_age_to_force_merge_seconds = 60;
ALTER TABLE readings MODIFY SETTING min_age_to_force_merge_seconds = 60;
