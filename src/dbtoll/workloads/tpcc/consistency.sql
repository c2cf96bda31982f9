-- The consistency conditions of clause 3.3.2, each as a query that counts what violates it. (11) is stated there for the
-- initial population, 2100 delivered orders in each district; what has been delivered since is counted with the customers.

-- 1: w_ytd is the sum of the districts' d_ytd
SELECT count(*) FROM warehouse
LEFT JOIN (SELECT d_w_id, sum(d_ytd) AS total FROM district GROUP BY d_w_id) AS d ON d_w_id = w_id
WHERE w_ytd <> coalesce(total, 0);

-- 2: d_next_o_id - 1 is the greatest o_id and the greatest no_o_id of the district
SELECT count(*) FROM district
LEFT JOIN (SELECT o_w_id, o_d_id, max(o_id) AS last FROM orders GROUP BY o_w_id, o_d_id) AS o ON o_w_id = d_w_id AND o_d_id = d_id
LEFT JOIN (SELECT no_w_id, no_d_id, max(no_o_id) AS last FROM new_order GROUP BY no_w_id, no_d_id) AS n
    ON no_w_id = d_w_id AND no_d_id = d_id
WHERE d_next_o_id - 1 <> coalesce(o.last, 0) OR d_next_o_id - 1 <> coalesce(n.last, o.last, 0);

-- 3: new orders of a district have consecutive numbers
SELECT count(*) FROM (SELECT count(*) AS number, max(no_o_id) - min(no_o_id) + 1 AS span FROM new_order
    GROUP BY no_w_id, no_d_id) AS n WHERE number <> span;

-- 4: the sum of o_ol_cnt is the number of order lines of the district
SELECT count(*) FROM (SELECT o_w_id, o_d_id, sum(o_ol_cnt) AS said FROM orders GROUP BY o_w_id, o_d_id) AS o
LEFT JOIN (SELECT ol_w_id, ol_d_id, count(*) AS number FROM order_line GROUP BY ol_w_id, ol_d_id) AS l
    ON ol_w_id = o_w_id AND ol_d_id = o_d_id
WHERE said <> coalesce(number, 0);

-- 5: an order has no carrier if and only if it is a new order
SELECT count(*) FROM orders LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
WHERE (o_carrier_id IS NULL AND no_o_id IS NULL) OR (o_carrier_id IS NOT NULL AND no_o_id IS NOT NULL);

-- 6: o_ol_cnt is the number of lines of the order
SELECT count(*) FROM orders LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS number FROM order_line
    GROUP BY ol_w_id, ol_d_id, ol_o_id) AS l ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
WHERE o_ol_cnt <> coalesce(number, 0);

-- 7: a line has no delivery date if and only if its order has no carrier
SELECT count(*) FROM order_line JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id
WHERE (ol_delivery_d IS NULL AND o_carrier_id IS NOT NULL) OR (ol_delivery_d IS NOT NULL AND o_carrier_id IS NULL);

-- 8: w_ytd is the sum of h_amount of the warehouse
SELECT count(*) FROM warehouse
LEFT JOIN (SELECT h_w_id, sum(h_amount) AS total FROM history GROUP BY h_w_id) AS h ON h_w_id = w_id
WHERE w_ytd <> coalesce(total, 0);

-- 9: d_ytd is the sum of h_amount of the district
SELECT count(*) FROM district
LEFT JOIN (SELECT h_w_id, h_d_id, sum(h_amount) AS total FROM history GROUP BY h_w_id, h_d_id) AS h
    ON h_w_id = d_w_id AND h_d_id = d_id
WHERE d_ytd <> coalesce(total, 0);

-- 10: c_balance is the sum of the delivered lines of the customer's orders less the sum of the customer's h_amount
SELECT count(*) FROM customer
LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS bought FROM orders
    JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
    WHERE ol_delivery_d IS NOT NULL GROUP BY o_w_id, o_d_id, o_c_id) AS o
    ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id
LEFT JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS paid FROM history GROUP BY h_c_w_id, h_c_d_id, h_c_id) AS h
    ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id
WHERE c_balance <> coalesce(bought, 0) - coalesce(paid, 0);

-- 11: orders less new orders of a district are the 2100 of the population and what was delivered since
SELECT count(*) FROM (SELECT o_w_id, o_d_id, count(*) AS number FROM orders GROUP BY o_w_id, o_d_id) AS o
JOIN (SELECT c_w_id, c_d_id, sum(c_delivery_cnt) AS delivered FROM customer GROUP BY c_w_id, c_d_id) AS c
    ON c_w_id = o_w_id AND c_d_id = o_d_id
LEFT JOIN (SELECT no_w_id, no_d_id, count(*) AS number FROM new_order GROUP BY no_w_id, no_d_id) AS n
    ON no_w_id = o_w_id AND no_d_id = o_d_id
WHERE o.number - coalesce(n.number, 0) <> 2100 + delivered;

-- 12: c_balance + c_ytd_payment is the sum of the delivered lines of the customer's orders
SELECT count(*) FROM customer
LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS bought FROM orders
    JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
    WHERE ol_delivery_d IS NOT NULL GROUP BY o_w_id, o_d_id, o_c_id) AS o
    ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id
WHERE c_balance + c_ytd_payment <> coalesce(bought, 0);
