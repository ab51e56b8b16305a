-- After the dump: the account that can only read, fixed statistics of all tables, plans that do not depend on what is in
-- memory (as settings.py has it), and no more writing by anybody.
DROP USER 'admin'@'%';
CREATE USER 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON *.* TO 'coevolve'@'%';
SET SESSION group_concat_max_len = 100000;
SELECT CONCAT('ANALYZE TABLE ', GROUP_CONCAT('`', table_schema, '`.`', table_name, '`')) INTO @analyze
  FROM information_schema.tables WHERE table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema');
PREPARE analyze_all FROM @analyze;
EXECUTE analyze_all;
UPDATE mysql.engine_cost SET cost_value = 0.25 WHERE cost_name = 'io_block_read_cost';
SET PERSIST super_read_only = ON;
