"""An app as a team has it that comes from Celery: its queues may be Celery's workers' too."""

from tests.worker.live_app import quick as noted

from umbel.compat.celery import Celery

app = Celery("sharing", set_as_current=False)
app.task(name="quick")(noted.run)
