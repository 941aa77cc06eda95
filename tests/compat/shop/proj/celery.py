from celery import Celery
from celery.signals import after_setup_task_logger, task_failure, task_postrun, worker_process_init
from celery.utils.log import get_task_logger

app = Celery("proj", include=["proj.tasks"])
app.config_from_object("proj.settings", namespace="CELERY")
app.autodiscover_tasks(["proj.mail"])

logger = get_task_logger(__name__)


@worker_process_init.connect
def greet(**kwargs):
    logger.info("a process of the shop is up")


@task_postrun.connect
def count(sender=None, task_id=None, state=None, **kwargs):
    logger.info("postrun of %s: %s", sender.name, state)


@task_failure.connect
def complain(sender=None, exception=None, **kwargs):
    logger.error("failed: %s: %r", sender.name, exception)


@after_setup_task_logger.connect
def set_level(logger=None, **kwargs):
    logger.setLevel("INFO")
