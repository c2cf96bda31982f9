-- The five transactions as functions; each is one statement, and so one transaction. They return 1: committed, 0: rolled back
-- as the input asks for, -1: another transaction was faster. What an inner block raises undoes what the block has done.

CREATE FUNCTION tpcc_new_order(w integer, d integer, c integer, ordered text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    lines integer[] := translate(ordered, '[]', '{}')::integer[];
    supplier integer;
    item_number integer;
    quantity integer;
    number_of_order integer;
    warehouse_tax numeric;
    district_tax numeric;
    discount numeric;
    price numeric;
    on_stock integer;
    info text;
    is_local integer := 1;
    total numeric := 0;
BEGIN
    SELECT w_tax INTO warehouse_tax FROM warehouse WHERE w_id = w;
    SELECT d_tax, d_next_o_id INTO district_tax, number_of_order FROM district WHERE d_w_id = w AND d_id = d FOR UPDATE;
    UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d;
    SELECT c_discount INTO discount FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    FOR line IN 1 .. array_length(lines, 1) LOOP
        IF lines[line][2] <> w THEN
            is_local := 0;
        END IF;
    END LOOP;
    INSERT INTO orders (o_id, o_d_id, o_w_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local)
    VALUES (number_of_order, d, w, c, current_timestamp, NULL, array_length(lines, 1), is_local);
    INSERT INTO new_order (no_o_id, no_d_id, no_w_id) VALUES (number_of_order, d, w);
    FOR line IN 1 .. array_length(lines, 1) LOOP
        item_number := lines[line][1];
        supplier := lines[line][2];
        quantity := lines[line][3];
        SELECT i_price INTO price FROM item WHERE i_id = item_number;
        IF NOT FOUND THEN
            RAISE no_data_found;
        END IF;
        SELECT s_quantity, CASE d
            WHEN 1 THEN s_dist_01 WHEN 2 THEN s_dist_02 WHEN 3 THEN s_dist_03 WHEN 4 THEN s_dist_04 WHEN 5 THEN s_dist_05
            WHEN 6 THEN s_dist_06 WHEN 7 THEN s_dist_07 WHEN 8 THEN s_dist_08 WHEN 9 THEN s_dist_09 ELSE s_dist_10 END
        INTO on_stock, info FROM stock WHERE s_w_id = supplier AND s_i_id = item_number FOR UPDATE;
        on_stock := on_stock - quantity;
        IF on_stock < 10 THEN
            on_stock := on_stock + 91;
        END IF;
        UPDATE stock SET s_quantity = on_stock, s_ytd = s_ytd + quantity, s_order_cnt = s_order_cnt + 1,
            s_remote_cnt = s_remote_cnt + CASE WHEN supplier = w THEN 0 ELSE 1 END
        WHERE s_w_id = supplier AND s_i_id = item_number;
        INSERT INTO order_line (ol_o_id, ol_d_id, ol_w_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d, ol_quantity,
            ol_amount, ol_dist_info)
        VALUES (number_of_order, d, w, line, item_number, supplier, NULL, quantity, price * quantity, info);
        total := total + price * quantity;
    END LOOP;
    total := total * (1 - discount) * (1 + warehouse_tax + district_tax);
    RETURN 1;
EXCEPTION WHEN no_data_found THEN
    RETURN 0;
END
$$;

CREATE FUNCTION tpcc_payment(
    w integer, d integer, at_w integer, at_d integer, c integer, last_name text, amount numeric
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    warehouse_name text;
    district_name text;
    customer_number integer := c;
    credit text;
BEGIN
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w RETURNING w_name INTO warehouse_name;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d RETURNING d_name INTO district_name;
    IF last_name <> '' THEN
        customer_number := tpcc_customer(at_w, at_d, last_name);
    END IF;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
        c_payment_cnt = c_payment_cnt + 1
    WHERE c_w_id = at_w AND c_d_id = at_d AND c_id = customer_number RETURNING c_credit INTO credit;
    IF credit = 'BC' THEN
        UPDATE customer SET c_data = left(concat(
            concat_ws(' ', customer_number, at_d, at_w, d, w, amount), ' | ', c_data), 500)
        WHERE c_w_id = at_w AND c_d_id = at_d AND c_id = customer_number;
    END IF;
    INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)
    VALUES (customer_number, at_d, at_w, d, w, current_timestamp, amount, concat(warehouse_name, '    ', district_name));
    RETURN 1;
END
$$;

-- Clause 2.5.2.2: of the n customers of that name, by first name, the one at n/2, rounded up.
CREATE FUNCTION tpcc_customer(w integer, d integer, last_name text) RETURNS integer LANGUAGE sql AS $$
    SELECT (array_agg(c_id ORDER BY c_first))[(count(*) + 1) / 2] FROM customer
    WHERE c_w_id = w AND c_d_id = d AND c_last = last_name
$$;

CREATE FUNCTION tpcc_order_status(w integer, d integer, c integer, last_name text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    customer_number integer := c;
    number_of_order integer;
BEGIN
    IF last_name <> '' THEN
        customer_number := tpcc_customer(w, d, last_name);
    END IF;
    PERFORM c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = customer_number;
    SELECT o_id INTO number_of_order FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = customer_number
    ORDER BY o_id DESC LIMIT 1;
    PERFORM ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = number_of_order;
    RETURN 1;
END
$$;

CREATE FUNCTION tpcc_delivery(w integer, carrier integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    number_of_order integer;
    customer_number integer;
    amount numeric;
BEGIN
    FOR d IN 1 .. 10 LOOP
        SELECT no_o_id INTO number_of_order FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = number_of_order;
        IF NOT FOUND THEN
            RAISE no_data_found;
        END IF;
        UPDATE orders SET o_carrier_id = carrier WHERE o_w_id = w AND o_d_id = d AND o_id = number_of_order
        RETURNING o_c_id INTO customer_number;
        UPDATE order_line SET ol_delivery_d = current_timestamp
        WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = number_of_order;
        SELECT sum(ol_amount) INTO amount FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = number_of_order;
        UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
        WHERE c_w_id = w AND c_d_id = d AND c_id = customer_number;
    END LOOP;
    RETURN 1;
EXCEPTION WHEN no_data_found THEN
    RETURN -1;
END
$$;

CREATE FUNCTION tpcc_stock_level(w integer, d integer, threshold integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    next_order integer;
    low integer;
BEGIN
    SELECT d_next_o_id INTO next_order FROM district WHERE d_w_id = w AND d_id = d;
    SELECT count(DISTINCT s_i_id) INTO low FROM order_line JOIN stock ON s_i_id = ol_i_id AND s_w_id = ol_w_id
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id >= next_order - 20 AND ol_o_id < next_order AND s_quantity < threshold;
    RETURN 1;
END
$$;
