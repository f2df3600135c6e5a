"""Two streaming tables, and a third one of the pairs: a ship and a strike within 3 of each other in 10 seconds."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import counterflow as cf

spark = SparkSession.active()


def files(folder: str) -> DataFrame:
    source = spark.readStream.schema("id LONG, ts TIMESTAMP, x LONG").option("maxFilesPerTrigger", 1)
    return source.parquet(f"{spark.conf.get('near.data')}/{folder}")


# A query function cannot ask Spark for the columns of a DataFrame, so the join is built outside of it. For the same
# reason it reads the sources, and not tables of this pipeline: Spark does not know those before it runs.
pairs = cf.window_join(
    files("ships").withWatermark("ts", "1 minute"),
    files("strikes").withWatermark("ts", "1 minute"),
    where="l.x BETWEEN r.x - 3 AND r.x + 3",
    time="ts",
    window="10 seconds",
    engine=cf.Spark(layout="2x2"),
)


@dp.table
def ships() -> DataFrame:
    return files("ships")


@dp.table
def near() -> DataFrame:
    return pairs


@dp.materialized_view
def near_by_ship() -> DataFrame:
    """A table of the pipeline that reads the pairs."""
    return spark.read.table("near").groupBy("id").count()
