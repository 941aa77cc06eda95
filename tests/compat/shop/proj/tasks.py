from celery import Task, current_task, shared_task
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, SoftTimeLimitExceeded
from celery.utils.log import get_task_logger

logger = get_task_logger(__name__)


class Counted(Task):
    abstract = True
    _till = None

    @property
    def till(self):
        if self._till is None:
            self._till = []
        return self._till

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        logger.error("on_failure of %s: %s", self.name, exc)


@shared_task
def price(amount, each=2):
    return amount * each


@shared_task
def add(x, y):
    logger.info("adding %s and %s", x, y)
    return x + y


@shared_task(base=Counted, name="shop.pay")
def pay(amount):
    if amount <= 0:
        raise ValueError(f"can't pay {amount}")
    return {"paid": amount}


@shared_task(bind=True, base=Counted, max_retries=5, default_retry_delay=0)
def reserve(self, item):
    self.till.append(item)
    if self.request.retries < 2:
        raise self.retry(exc=ConnectionError("the store is busy"), countdown=0)
    return {"item": item, "retries": self.request.retries, "name": current_task.name}


@shared_task(bind=True, max_retries=1, default_retry_delay=0)
def hopeless(self):
    try:
        raise ConnectionError("never there")
    except ConnectionError as exc:
        try:
            self.retry(exc=exc)
        except MaxRetriesExceededError:  # raised only where no exc is given
            return "gave up"


@shared_task(autoretry_for=(OSError,), retry_backoff=False, default_retry_delay=0, max_retries=3)
def flaky(path):
    with open(path) as file:
        return file.read()


@shared_task(bind=True)
def progress(self):
    self.update_state(state="PACKING", meta={"done": 1, "total": 2})
    raise Ignore()


@shared_task(soft_time_limit=0.2)
def slow():
    try:
        while True:
            pass
    except SoftTimeLimitExceeded:
        return "stopped"


@shared_task(acks_late=True)
def refuse():
    raise Reject("not for us", requeue=False)
