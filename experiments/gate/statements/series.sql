SELECT count(*) FROM generate_series(1, 400000) AS g WHERE (g * 31) % 7 = 3
