-- The five transactions as procedures. Each answers with one value: 1: committed, 0: rolled back as the input asks for,
-- -1: another transaction was faster. Any error rolls back and is passed on.

CREATE PROCEDURE tpcc_new_order(w integer, d integer, c integer, ordered text)
BEGIN
    DECLARE supplier, item_number, quantity, number_of_order, on_stock, line integer;
    DECLARE how_many integer DEFAULT json_length(ordered);
    DECLARE is_local integer DEFAULT 1;
    DECLARE warehouse_tax, district_tax, discount decimal(4, 4);
    DECLARE price decimal(5, 2);
    DECLARE total decimal(12, 2) DEFAULT 0;
    DECLARE info char(24);
    DECLARE ended integer DEFAULT 1;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    SELECT w_tax INTO warehouse_tax FROM warehouse WHERE w_id = w;
    SELECT d_tax, d_next_o_id INTO district_tax, number_of_order FROM district WHERE d_w_id = w AND d_id = d FOR UPDATE;
    UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d;
    SELECT c_discount INTO discount FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = c;
    SET line = 0;
    WHILE line < how_many DO
        IF json_value(ordered, concat('$[', line, '][1]')) <> w THEN
            SET is_local = 0;
        END IF;
        SET line = line + 1;
    END WHILE;
    INSERT INTO orders (o_id, o_d_id, o_w_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local)
    VALUES (number_of_order, d, w, c, current_timestamp, NULL, how_many, is_local);
    INSERT INTO new_order (no_o_id, no_d_id, no_w_id) VALUES (number_of_order, d, w);
    SET line = 0;
    WHILE line < how_many AND ended = 1 DO
        SET item_number = json_value(ordered, concat('$[', line, '][0]'));
        SET supplier = json_value(ordered, concat('$[', line, '][1]'));
        SET quantity = json_value(ordered, concat('$[', line, '][2]'));
        SET price = (SELECT i_price FROM item WHERE i_id = item_number);
        IF price IS NULL THEN
            SET ended = 0;
        ELSE
            SELECT s_quantity, CASE d
                WHEN 1 THEN s_dist_01 WHEN 2 THEN s_dist_02 WHEN 3 THEN s_dist_03 WHEN 4 THEN s_dist_04 WHEN 5 THEN s_dist_05
                WHEN 6 THEN s_dist_06 WHEN 7 THEN s_dist_07 WHEN 8 THEN s_dist_08 WHEN 9 THEN s_dist_09 ELSE s_dist_10 END
            INTO on_stock, info FROM stock WHERE s_w_id = supplier AND s_i_id = item_number FOR UPDATE;
            SET on_stock = on_stock - quantity;
            IF on_stock < 10 THEN
                SET on_stock = on_stock + 91;
            END IF;
            UPDATE stock SET s_quantity = on_stock, s_ytd = s_ytd + quantity, s_order_cnt = s_order_cnt + 1,
                s_remote_cnt = s_remote_cnt + CASE WHEN supplier = w THEN 0 ELSE 1 END
            WHERE s_w_id = supplier AND s_i_id = item_number;
            INSERT INTO order_line (ol_o_id, ol_d_id, ol_w_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d,
                ol_quantity, ol_amount, ol_dist_info)
            VALUES (number_of_order, d, w, line + 1, item_number, supplier, NULL, quantity, price * quantity, info);
            SET total = total + price * quantity;
        END IF;
        SET line = line + 1;
    END WHILE;
    IF ended = 1 THEN
        SET total = total * (1 - discount) * (1 + warehouse_tax + district_tax);
        COMMIT;
    ELSE
        ROLLBACK;
    END IF;
    SELECT ended;
END;

CREATE PROCEDURE tpcc_payment(
    w integer, d integer, at_w integer, at_d integer, c integer, last_name varchar(16), amount decimal(12, 2)
)
BEGIN
    DECLARE warehouse_name, district_name varchar(10);
    DECLARE customer_number integer DEFAULT c;
    DECLARE credit char(2);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w;
    SELECT w_name INTO warehouse_name FROM warehouse WHERE w_id = w;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d;
    SELECT d_name INTO district_name FROM district WHERE d_w_id = w AND d_id = d;
    IF last_name <> '' THEN
        SET customer_number = tpcc_customer(at_w, at_d, last_name);
    END IF;
    SELECT c_credit INTO credit FROM customer WHERE c_w_id = at_w AND c_d_id = at_d AND c_id = customer_number FOR UPDATE;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
        c_payment_cnt = c_payment_cnt + 1
    WHERE c_w_id = at_w AND c_d_id = at_d AND c_id = customer_number;
    IF credit = 'BC' THEN
        UPDATE customer SET c_data = left(concat(
            concat_ws(' ', customer_number, at_d, at_w, d, w, amount), ' | ', c_data), 500)
        WHERE c_w_id = at_w AND c_d_id = at_d AND c_id = customer_number;
    END IF;
    INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)
    VALUES (customer_number, at_d, at_w, d, w, current_timestamp, amount, concat(warehouse_name, '    ', district_name));
    COMMIT;
    SELECT 1;
END;

-- Clause 2.5.2.2: of the n customers of that name, by first name, the one at n/2, rounded up.
CREATE FUNCTION tpcc_customer(w integer, d integer, last_name varchar(16)) RETURNS integer READS SQL DATA
BEGIN
    DECLARE how_many, found integer;
    SELECT count(*) INTO how_many FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = last_name;
    SET how_many = (how_many + 1) DIV 2 - 1;
    SELECT c_id INTO found FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = last_name
    ORDER BY c_first LIMIT how_many, 1;
    RETURN found;
END;

CREATE PROCEDURE tpcc_order_status(w integer, d integer, c integer, last_name varchar(16))
BEGIN
    DECLARE customer_number integer DEFAULT c;
    DECLARE number_of_order, seen integer;
    DECLARE balance decimal(12, 2);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    IF last_name <> '' THEN
        SET customer_number = tpcc_customer(w, d, last_name);
    END IF;
    SELECT c_balance INTO balance FROM customer WHERE c_w_id = w AND c_d_id = d AND c_id = customer_number;
    SELECT o_id INTO number_of_order FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = customer_number
    ORDER BY o_id DESC LIMIT 1;
    SELECT count(ol_delivery_d) + sum(ol_i_id + ol_supply_w_id + ol_quantity + ol_amount) INTO seen FROM order_line
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = number_of_order;
    COMMIT;
    SELECT 1;
END;

CREATE PROCEDURE tpcc_delivery(w integer, carrier integer)
BEGIN
    DECLARE d integer DEFAULT 1;
    DECLARE ended integer DEFAULT 1;
    DECLARE number_of_order, customer_number integer;
    DECLARE amount decimal(12, 2);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    START TRANSACTION;
    WHILE d <= 10 AND ended = 1 DO
        SET number_of_order =
            (SELECT no_o_id FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1);
        IF number_of_order IS NOT NULL THEN
            DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = number_of_order;
            IF row_count() = 0 THEN
                SET ended = -1;
            ELSE
                SELECT o_c_id INTO customer_number FROM orders WHERE o_w_id = w AND o_d_id = d AND o_id = number_of_order;
                UPDATE orders SET o_carrier_id = carrier WHERE o_w_id = w AND o_d_id = d AND o_id = number_of_order;
                UPDATE order_line SET ol_delivery_d = current_timestamp
                WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = number_of_order;
                SELECT sum(ol_amount) INTO amount FROM order_line
                WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = number_of_order;
                UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
                WHERE c_w_id = w AND c_d_id = d AND c_id = customer_number;
            END IF;
        END IF;
        SET d = d + 1;
    END WHILE;
    IF ended = 1 THEN
        COMMIT;
    ELSE
        ROLLBACK;
    END IF;
    SELECT ended;
END;

CREATE PROCEDURE tpcc_stock_level(w integer, d integer, threshold integer)
BEGIN
    DECLARE next_order, low integer;
    SELECT d_next_o_id INTO next_order FROM district WHERE d_w_id = w AND d_id = d;
    SELECT count(DISTINCT s_i_id) INTO low FROM order_line JOIN stock ON s_i_id = ol_i_id AND s_w_id = ol_w_id
    WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id >= next_order - 20 AND ol_o_id < next_order AND s_quantity < threshold;
    SELECT 1;
END;
