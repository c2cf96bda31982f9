-- TATP Benchmark Description 1.0, clause 2.2. Columns in the order in which the agent makes the rows
-- (agent/src/oltp/tatp/population.rs).

CREATE TABLE subscriber (
    s_id integer NOT NULL,
    sub_nbr varchar(15) NOT NULL,
    bit_1 integer, bit_2 integer, bit_3 integer, bit_4 integer, bit_5 integer,
    bit_6 integer, bit_7 integer, bit_8 integer, bit_9 integer, bit_10 integer,
    hex_1 integer, hex_2 integer, hex_3 integer, hex_4 integer, hex_5 integer,
    hex_6 integer, hex_7 integer, hex_8 integer, hex_9 integer, hex_10 integer,
    byte2_1 integer, byte2_2 integer, byte2_3 integer, byte2_4 integer, byte2_5 integer,
    byte2_6 integer, byte2_7 integer, byte2_8 integer, byte2_9 integer, byte2_10 integer,
    msc_location integer,
    vlr_location integer
);

CREATE TABLE access_info (
    s_id integer NOT NULL,
    ai_type integer NOT NULL,
    data1 integer,
    data2 integer,
    data3 char(3),
    data4 char(5)
);

CREATE TABLE special_facility (
    s_id integer NOT NULL,
    sf_type integer NOT NULL,
    is_active integer NOT NULL,
    error_cntrl integer,
    data_a integer,
    data_b char(5)
);

CREATE TABLE call_forwarding (
    s_id integer NOT NULL,
    sf_type integer NOT NULL,
    start_time integer NOT NULL,
    end_time integer,
    numberx varchar(15)
);
