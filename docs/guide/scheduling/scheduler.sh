#!/bin/sh
# Deploys workflow.yaml, and has Cloud Scheduler start it every night.
# Usage: scheduler.sh PROJECT REGION BUCKET IMAGE
set -eu
project=$1 region=$2 bucket=$3 image=$4
account=shardbeam@$project.iam.gserviceaccount.com

gcloud workflows deploy shardbeam-coco \
    --project="$project" --location="$region" \
    --source="$(dirname "$0")/workflow.yaml" --service-account="$account"

# The argument of a workflow is JSON within a string within JSON.
argument=$(printf '{\\"bucket\\": \\"%s\\", \\"region\\": \\"%s\\", \\"image\\": \\"%s\\", \\"service_account\\": \\"%s\\"}' \
    "$bucket" "$region" "$image" "$account")
gcloud scheduler jobs create http shardbeam-coco \
    --project="$project" --location="$region" \
    --schedule="17 3 * * *" --time-zone=Etc/UTC \
    --uri="https://workflowexecutions.googleapis.com/v1/projects/$project/locations/$region/workflows/shardbeam-coco/executions" \
    --message-body="{\"argument\": \"$argument\"}" \
    --oauth-service-account-email="$account"
