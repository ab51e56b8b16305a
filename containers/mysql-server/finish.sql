-- After the dump: the account that can only read its databases, fixed statistics of all tables, plans that do not
-- depend on what is in memory (as settings.py has it), and no more writing by anybody.
DROP USER 'admin'@'%';
CREATE USER 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON battle_death.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON car_1.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON concert_singer.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON course_teach.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON cre_doc_template_mgt.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON dog_kennels.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON employee_hire_evaluation.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON flight_2.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON museum_visit.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON network_1.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON orchestra.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON pets_1.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON poker_player.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON real_estate_properties.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON singer.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON student_transcripts_tracking.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON tvshow.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON voter_1.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON world_1.* TO 'coevolve'@'%';
GRANT SELECT, SHOW VIEW ON wta_1.* TO 'coevolve'@'%';
SET SESSION group_concat_max_len = 100000;
SELECT CONCAT('ANALYZE TABLE ', GROUP_CONCAT('`', table_schema, '`.`', table_name, '`')) INTO @analyze
  FROM information_schema.tables WHERE table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema');
PREPARE analyze_all FROM @analyze;
EXECUTE analyze_all;
UPDATE mysql.engine_cost SET cost_value = 0.25 WHERE cost_name = 'io_block_read_cost';
SET PERSIST super_read_only = ON;
