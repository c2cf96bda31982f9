CREATE UNIQUE INDEX subscriber_by_number ON subscriber (sub_nbr);
