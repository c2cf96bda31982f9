-- The description's own: an insertion for a facility that is not there is to fail.
ALTER TABLE access_info ADD FOREIGN KEY (s_id) REFERENCES subscriber (s_id);
ALTER TABLE special_facility ADD FOREIGN KEY (s_id) REFERENCES subscriber (s_id);
ALTER TABLE call_forwarding ADD FOREIGN KEY (s_id, sf_type) REFERENCES special_facility (s_id, sf_type);
