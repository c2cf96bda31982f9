ALTER TABLE subscriber ADD PRIMARY KEY (s_id);
ALTER TABLE special_facility ADD PRIMARY KEY (s_id, sf_type);
ALTER TABLE access_info ADD PRIMARY KEY (s_id, ai_type);
ALTER TABLE call_forwarding ADD PRIMARY KEY (s_id, sf_type, start_time);
