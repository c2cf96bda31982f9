SELECT max(length(repeat(md5(g::text), 4))) FROM generate_series(1, 150000) AS g
