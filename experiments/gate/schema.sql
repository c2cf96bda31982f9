-- Work that needs a processor and next to no memory: a quota holds back exactly this.
CREATE FUNCTION spin(n integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    total bigint := 0;
BEGIN
    FOR i IN 1..n LOOP
        total := (total * 31 + i) % 1000003;
    END LOOP;
    RETURN total;
END
$$;
