-- TPC-H 2.4.22 Global Sales Opportunity
-- parameters: I1 I2 I3 I4 I5 I6 I7
-- answer: exact exact numeric
-- MonetDB: varchar needs a length.
-- MonetDB: the average of decimals keeps their scale; as double it parts the rows as in the reference answer.
select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal
from (
  select substring(c_phone from 1 for 2) as cntrycode, c_acctbal
  from customer
  where substring(c_phone from 1 for 2) in (
      cast($1 as varchar(2)), cast($2 as varchar(2)), cast($3 as varchar(2)), cast($4 as varchar(2)),
      cast($5 as varchar(2)), cast($6 as varchar(2)), cast($7 as varchar(2))
    )
    and c_acctbal > (
      select avg(cast(c_acctbal as double))
      from customer
      where c_acctbal > 0.00
        and substring(c_phone from 1 for 2) in (
          cast($1 as varchar(2)), cast($2 as varchar(2)), cast($3 as varchar(2)), cast($4 as varchar(2)),
          cast($5 as varchar(2)), cast($6 as varchar(2)), cast($7 as varchar(2))
        )
    )
    and not exists (select * from orders where o_custkey = c_custkey)
) as custsale
group by cntrycode
order by cntrycode
