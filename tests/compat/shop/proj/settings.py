import os

from kombu import Exchange, Queue

UNRELATED = "an application has settings of its own"

CELERY_BROKER_URL = os.environ["SHOP_BROKER"]
CELERY_RESULT_BACKEND = os.environ["SHOP_RESULTS"]
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "Europe/Berlin"
CELERY_TASK_TRACK_STARTED = True
CELERY_RESULT_EXTENDED = True
CELERY_TASK_DEFAULT_QUEUE = "orders"
CELERY_TASK_QUEUES = (
    Queue("orders", Exchange("orders"), routing_key="orders"),
    Queue("mail", Exchange("post", type="topic"), routing_key="post.#"),
)
CELERY_TASK_ROUTES = {
    "proj.mail.tasks.*": {"queue": "mail", "routing_key": "post.letter"},
}
