"""Kafka without Spark's connector: a streaming source and an exactly-once sink on confluent-kafka.

The library is an optional extra (`moorage[kafka]`) and imported when a job uses one of them.
"""
