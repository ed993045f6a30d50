-- As of the other tables, see the file on merges.
ALTER TABLE frames MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 67108864;
ALTER TABLE frames MODIFY SETTING min_age_to_force_merge_seconds = 60;
