"""Builds the coco dataset every night on Dataflow, if its inputs have changed.

Needs apache-airflow-providers-google and apache-airflow-providers-apache-beam.
"""

import datetime

from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator
from airflow.sdk import DAG

PROJECT = "my-project"
REGION = "us-central1"
BUCKET = "gs://my-bucket"
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/images/shardbeam:0.2.0"

with DAG(
    dag_id="shardbeam_coco",
    schedule="17 3 * * *",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    # A missed night needs no run: the next build uses the inputs as they are then.
    catchup=False,
    max_active_runs=1,
):
    DataflowStartFlexTemplateOperator(
        task_id="build",
        project_id=PROJECT,
        location=REGION,
        body={
            "launchParameter": {
                # Always the same name: Dataflow refuses a second active job with it.
                "jobName": "shardbeam-coco",
                "containerSpecGcsPath": f"{BUCKET}/templates/shardbeam.json",
                "parameters": {
                    "config": f"{BUCKET}/configs/coco.yaml",
                    "if_changed": "true",
                    "reuse": f"{BUCKET}/tfrecords/coco/latest",
                    "sdk_container_image": IMAGE,
                },
                "environment": {
                    "serviceAccountEmail": f"shardbeam@{PROJECT}.iam.gserviceaccount.com",
                    "tempLocation": f"{BUCKET}/tmp",
                    "machineType": "n2-standard-4",
                    "maxWorkers": 50,
                },
            }
        },
        append_job_name=False,
        # The triggerer waits for the job, so it occupies no Airflow worker.
        deferrable=True,
        # A job that is started again goes on with the finished shards. Wait 20 minutes, because
        # the failed job holds the output's lease for 15.
        retries=2,
        retry_delay=datetime.timedelta(minutes=20),
        execution_timeout=datetime.timedelta(hours=12),
    )
