-- TPC-H 2.4.22 Global Sales Opportunity
-- parameters: I1 I2 I3 I4 I5 I6 I7
-- answer: exact exact numeric
-- dialect: a cast to text is one to char.
select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal
from (
  select substring(c_phone from 1 for 2) as cntrycode, c_acctbal
  from customer
  where substring(c_phone from 1 for 2) in (
      cast($1 as char), cast($2 as char), cast($3 as char), cast($4 as char),
      cast($5 as char), cast($6 as char), cast($7 as char)
    )
    and c_acctbal > (
      select avg(c_acctbal)
      from customer
      where c_acctbal > 0.00
        and substring(c_phone from 1 for 2) in (
          cast($1 as char), cast($2 as char), cast($3 as char), cast($4 as char),
          cast($5 as char), cast($6 as char), cast($7 as char)
        )
    )
    and not exists (select * from orders where o_custkey = c_custkey)
) as custsale
group by cntrycode
order by cntrycode
