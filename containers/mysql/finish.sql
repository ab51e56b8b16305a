-- After the dump: the account that can only read, fixed statistics of all tables, and no more writing by anybody.
DROP USER 'admin'@'%';
CREATE USER 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON *.* TO 'coevolve'@'%';
SET SESSION group_concat_max_len = 100000;
SELECT CONCAT('ANALYZE TABLE ', GROUP_CONCAT('`', table_schema, '`.`', table_name, '`')) INTO @analyze
  FROM information_schema.tables WHERE table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema');
PREPARE analyze_all FROM @analyze;
EXECUTE analyze_all;
SET PERSIST super_read_only = ON;
